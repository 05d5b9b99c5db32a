//! Any bytes, cut anywhere, as commands of the Redis protocol: decoded or rejected, the same in one piece and in many, with no
//! more memory than twice the input plus 64 KiB.
#![no_main]

mod counting;

use libfuzzer_sys::fuzz_target;
use tollgate::server::resp::decode::{ARGUMENT_BYTES_MAX, ARGUMENTS_MAX, Arguments, DecodeError, decode};

/// Decodes all commands into a checksum. Returns the decoded bytes and the error.
fn read(buffer: &[u8], checksum: &mut u64) -> (usize, Option<DecodeError>) {
    let mut arguments = Arguments::new();
    let mut used = 0;
    loop {
        match decode(&buffer[used..], &mut arguments) {
            Ok(Some(bytes)) => {
                assert!(bytes > 0 && used + bytes <= buffer.len());
                assert!(arguments.all().len() <= ARGUMENTS_MAX);
                used += bytes;
                for argument in arguments.all() {
                    assert!(argument.len() <= ARGUMENT_BYTES_MAX);
                    *checksum = argument.iter().fold(*checksum, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
                }
                *checksum = checksum.wrapping_mul(31).wrapping_add(arguments.all().len() as u64);
            }
            Ok(None) => return (used, None),
            Err(error) => {
                assert!(error.to_string().is_ascii());
                return (used, Some(error));
            }
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&cut, bytes)) = input.split_first() else { return };
    counting::bounded(input, || {
        let mut whole = 0;
        let (_, error) = read(bytes, &mut whole);
        // As a connection does: an incomplete command is kept.
        let (mut parts, mut buffer, mut ended) = (0, Vec::new(), None);
        for part in bytes.chunks(usize::from(cut).max(1)) {
            buffer.extend_from_slice(part);
            let (used, error) = read(&buffer, &mut parts);
            buffer.drain(..used);
            if error.is_some() {
                ended = error;
                break;
            }
        }
        assert_eq!((whole, error), (parts, ended));
    });
});
