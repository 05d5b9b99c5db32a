//! The text of the script, joined when this crate is compiled.

use tollgate_core::lua::TWINS;

/// Talks to the server.
const SETTLE: &str = include_str!("settle.lua");

/// The script, for `SCRIPT LOAD` and `EVALSHA`.
pub const SCRIPT: &str = text(&joined::<{ length(&SCRIPT_PARTS) }>(&SCRIPT_PARTS));

/// The name of the library and of its function: another form of arguments, answers or states is another name, so that
/// versions live side by side.
pub const FUNCTION: &str = "tollgate_1";

/// The same as a library of functions, for `FUNCTION LOAD` and `FCALL`.
pub const LIBRARY: &str = text(&joined::<{ length(&LIBRARY_PARTS) }>(&LIBRARY_PARTS));

const SCRIPT_PARTS: [&str; 3] = [TWINS, SETTLE, "return settle(KEYS, ARGV)\n"];

const LIBRARY_PARTS: [&str; 6] = [
    "#!lua name=",
    FUNCTION,
    "\n",
    TWINS,
    SETTLE,
    "redis.register_function('tollgate_1', settle)\n",
];

const fn length(parts: &[&str]) -> usize {
    let (mut length, mut rest) = (0, parts);
    while let [part, others @ ..] = rest {
        length += part.len();
        rest = others;
    }
    length
}

const fn joined<const LENGTH: usize>(parts: &[&str]) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    let (mut room, mut rest): (&mut [u8], _) = (&mut bytes, parts);
    while let [part, others @ ..] = rest {
        let (here, behind) = room.split_at_mut(part.len());
        here.copy_from_slice(part.as_bytes());
        (room, rest) = (behind, others);
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
            .strip_prefix("#!lua name=tollgate_1\n")
            .expect("begins with its name");
        let library = library.strip_suffix(&format!("redis.register_function('{FUNCTION}', settle)\n"));
        assert_eq!(library, Some(body));
    }
}
