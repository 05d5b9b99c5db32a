//! Booleans and integers as the YAML reader of envoyproxy/ratelimit, written in Go, takes them.

/// Parses `yes`, `off` and the like; a boolean of YAML 1.2 is one already.
pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

/// Parses an integer that is not negative, decimal or with a prefix: `0x10`, `0b101`, `0o17`, and `017`, which is octal
/// too. Underscores may separate its digits.
pub(super) fn parse_integer(text: &str) -> Option<u64> {
    let text = text.replace('_', "");
    let digits = text.strip_prefix('+').unwrap_or(&text);
    if !digits.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, digits.get(2..)?),
        [b'0', b'b' | b'B', ..] => (2, digits.get(2..)?),
        [b'0', b'o' | b'O', ..] => (8, digits.get(2..)?),
        [b'0', _, ..] => (8, digits.get(1..)?),
        _ => (10, digits),
    };
    // The standard library would accept a sign here.
    match digits.starts_with(['+', '-']) {
        true => None,
        false => u64::from_str_radix(digits, radix).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integer_is_what_the_other_reader_makes_of_it() {
        for (text, number) in [
            ("0", Some(0)),
            ("10", Some(10)),
            ("+10", Some(10)),
            ("0x10", Some(16)),
            ("0XfF", Some(255)),
            ("0b101", Some(5)),
            ("0o17", Some(15)),
            ("017", Some(15)),
            ("1_000", Some(1_000)),
            ("08", None),
            ("0x", None),
            ("0x-1", None),
            ("-1", None),
            ("1.0", None),
            ("", None),
            ("x10", None),
        ] {
            assert_eq!(parse_integer(text), number, "{text}");
        }
    }
}
