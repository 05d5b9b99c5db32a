//! Any bytes, cut anywhere, as commands of the Redis protocol: read or refused, alike in one piece and in many, with no more
//! memory than twice the input and 64 KiB.
#![no_main]

mod counting;

use libfuzzer_sys::fuzz_target;
use tollgate::server::resp::decode::{ARGUMENT_BYTES_MAX, ARGUMENTS_MAX, Arguments, Fault, decode};

/// What reading came to: a number for each command and how it ended.
fn read(held: &[u8], seen: &mut u64) -> (usize, Option<Fault>) {
    let mut arguments = Arguments::new();
    let mut used = 0;
    loop {
        match decode(&held[used..], &mut arguments) {
            Ok(Some(bytes)) => {
                assert!(bytes > 0 && used + bytes <= held.len());
                assert!(arguments.all().len() <= ARGUMENTS_MAX);
                used += bytes;
                for argument in arguments.all() {
                    assert!(argument.len() <= ARGUMENT_BYTES_MAX);
                    *seen = argument.iter().fold(*seen, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
                }
                *seen = seen.wrapping_mul(31).wrapping_add(arguments.all().len() as u64);
            }
            Ok(None) => return (used, None),
            Err(fault) => {
                assert!(fault.to_string().is_ascii());
                return (used, Some(fault));
            }
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&cut, bytes)) = input.split_first() else { return };
    counting::bounded(input, || {
        let mut whole = 0;
        let (_, fault) = read(bytes, &mut whole);
        // As a connection does: what is not yet a whole command is kept.
        let (mut parts, mut held, mut ended) = (0, Vec::new(), None);
        for part in bytes.chunks(usize::from(cut).max(1)) {
            held.extend_from_slice(part);
            let (used, fault) = read(&held, &mut parts);
            held.drain(..used);
            if fault.is_some() {
                ended = fault;
                break;
            }
        }
        assert_eq!((whole, fault), (parts, ended));
    });
});
