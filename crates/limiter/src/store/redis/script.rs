//! The text of the script, joined at compile time.

pub mod call;

use tollgate_core::lua::TWINS;

/// The only part that calls the server.
const SETTLE: &str = include_str!("script/settle.lua");

/// The script, for `SCRIPT LOAD` and `EVALSHA`.
pub const SCRIPT: &str = text(&concat::<{ length(&SCRIPT_PARTS) }>(&SCRIPT_PARTS));

/// The name of the library and of its function. It ends in a digest of both: another script has another name, so that
/// versions of this program can share a server.
pub const FUNCTION: &str = text(&concat::<{ length(&NAME_PARTS) }>(&NAME_PARTS));

/// The name of the function for peeks: servers let it write nothing, and replicas run it.
pub const PEEK_FUNCTION: &str = text(&concat::<{ length(&PEEK_PARTS) }>(&PEEK_PARTS));

const NAME_PARTS: [&str; 2] = ["tollgate_", text(&DIGEST)];

const PEEK_PARTS: [&str; 2] = [FUNCTION, "_peek"];

const DIGEST: [u8; 16] = hexadecimal(digest(&concat::<{ length(&DIGESTED) }>(&DIGESTED)));

const DIGESTED: [&str; 3] = [TWINS, SETTLE, REGISTER];

/// The same as a library of functions, for `FUNCTION LOAD` and `FCALL`.
pub const LIBRARY: &str = text(&concat::<{ length(&LIBRARY_PARTS) }>(&LIBRARY_PARTS));

const SCRIPT_PARTS: [&str; 3] = [TWINS, SETTLE, "return settle(KEYS, ARGV)\n"];

const LIBRARY_PARTS: [&str; 9] = [
    "#!lua name=",
    FUNCTION,
    "\n",
    TWINS,
    SETTLE,
    REGISTER,
    "register('",
    FUNCTION,
    "')\n",
];

/// The end of a library, in place of a script's call.
const REGISTER: &str = "\
local function register(name)
  redis.register_function(name, settle)
  redis.register_function({ function_name = name .. '_peek', callback = settle, flags = { 'no-writes' } })
end
";

/// FNV-1a: distinguishes scripts, and can be computed at compile time.
const fn digest(mut bytes: &[u8]) -> u64 {
    let mut digest = 0xcbf2_9ce4_8422_2325;
    while let [byte, rest @ ..] = bytes {
        digest = (digest ^ *byte as u64).wrapping_mul(0x100_0000_01b3);
        bytes = rest;
    }
    digest
}

const fn hexadecimal(number: u64) -> [u8; 16] {
    let mut digits = [0; 16];
    let (mut buffer, mut rest): (&mut [u8], u64) = (&mut digits, number);
    while let [before @ .., last] = buffer {
        let digit = (rest % 16) as u8;
        *last = if digit < 10 { b'0' + digit } else { b'a' + digit - 10 };
        (buffer, rest) = (before, rest / 16);
    }
    digits
}

const fn length(parts: &[&str]) -> usize {
    let (mut length, mut rest) = (0, parts);
    while let [part, others @ ..] = rest {
        length += part.len();
        rest = others;
    }
    length
}

const fn concat<const LENGTH: usize>(parts: &[&str]) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    let (mut buffer, mut rest): (&mut [u8], _) = (&mut bytes, parts);
    while let [part, others @ ..] = rest {
        let (target, behind) = buffer.split_at_mut(part.len());
        target.copy_from_slice(part.as_bytes());
        (buffer, rest) = (behind, others);
    }
    bytes
}

const fn text(bytes: &'static [u8]) -> &'static str {
    match str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => panic!("joined from whole texts"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_and_library_are_made_of_the_same_parts() {
        assert!(SCRIPT.contains("local function token_bucket()") && SCRIPT.contains("local function settle("));
        let body = SCRIPT
            .strip_suffix("return settle(KEYS, ARGV)\n")
            .expect("ends with its call");
        let library = LIBRARY
            .strip_prefix(&format!("#!lua name={FUNCTION}\n"))
            .expect("begins with its name");
        let library = library.strip_suffix(&format!("{REGISTER}register('{FUNCTION}')\n"));
        assert_eq!(library, Some(body));
        assert!(REGISTER.contains("name .. '_peek'") && PEEK_FUNCTION == format!("{FUNCTION}_peek"));
    }

    #[test]
    fn another_script_has_another_name() {
        assert_eq!(digest(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(digest(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(hexadecimal(0x0123_4567_89ab_cdef), *b"0123456789abcdef");
        let all = [TWINS, SETTLE, REGISTER].concat();
        assert_eq!(FUNCTION, format!("tollgate_{:016x}", digest(all.as_bytes())));
    }
}
