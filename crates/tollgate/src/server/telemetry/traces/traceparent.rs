//! The trace context of a request: the header `traceparent` of W3C.
//!
//! One that cannot be read counts as none, as the recommendation says: a caller's mistake costs the caller's trace, not the verdict.

use hyper::HeaderMap;
use std::num::{NonZeroU64, NonZeroU128};

/// A parsed `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TraceParent {
    pub(super) trace: NonZeroU128,
    pub(super) span: NonZeroU64,
    pub(super) flags: u8,
}

/// The length of the fields of version 0. Later versions may have more.
const BYTES: usize = 55;

impl TraceParent {
    /// The trace context in these headers. None: there is not exactly one.
    pub(super) fn of_headers(headers: &HeaderMap) -> Option<Self> {
        let mut lines = headers.get_all("traceparent").iter();
        match (lines.next(), lines.next()) {
            (Some(line), None) => Self::parse(line.as_bytes()),
            _ => None,
        }
    }

    /// Parses `version-trace-span-flags`, each in lower-case hexadecimal.
    fn parse(text: &[u8]) -> Option<Self> {
        let (fields, more) = text.split_at_checked(BYTES)?;
        let mut fields = fields.split(|byte| *byte == b'-');
        let mut field = |digits: usize| hexadecimal(fields.next()?, digits);
        let version = u8::try_from(field(2)?).ok()?;
        let trace = NonZeroU128::new(field(32)?)?;
        let span = NonZeroU64::new(u64::try_from(field(16)?).ok()?)?;
        let flags = u8::try_from(field(2)?).ok()?;
        let is_complete = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => more.first().is_none_or(|byte| *byte == b'-'),
        };
        is_complete.then_some(Self { trace, span, flags })
    }
}

fn hexadecimal(text: &[u8], digits: usize) -> Option<u128> {
    if text.len() != digits {
        return None;
    }
    text.iter().try_fold(0_u128, |number, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<(u128, u64, u8)> {
        TraceParent::parse(text.as_bytes()).map(|parent| (parent.trace.get(), parent.span.get(), parent.flags))
    }

    #[test]
    fn a_context_is_read_also_of_later_versions() {
        let trace = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
        let span = 0x00f0_67aa_0ba9_02b7;
        let fields = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
        for (text, expected) in [
            (format!("00-{fields}-01"), Some((trace, span, 1))),
            (format!("00-{fields}-00"), Some((trace, span, 0))),
            (format!("00-{fields}-ff"), Some((trace, span, 0xff))),
            (format!("cc-{fields}-01"), Some((trace, span, 1))),
            (format!("cc-{fields}-01-what-comes"), Some((trace, span, 1))),
            (format!("cc-{fields}-01.what"), None),
            (format!("00-{fields}-01-"), None),
            (format!("00-{fields}-01-more"), None),
            (format!("ff-{fields}-01"), None),
            (format!("0-{fields}-001"), None),
            (format!("00-{fields}-1"), None),
            (format!("00-{}-01", fields.to_uppercase()), None),
            (format!("00-{}-01", fields.replace('4', "g")), None),
            (
                "00-00000000000000000000000000000000-00f067aa0ba902b7-01".to_owned(),
                None,
            ),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01".to_owned(),
                None,
            ),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e47360-0f067aa0ba902b7-01".to_owned(),
                None,
            ),
            (String::new(), None),
        ] {
            assert_eq!(parse(&text), expected, "{text}");
        }
    }

    #[test]
    fn any_bytes_are_handled() {
        let valid = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        for at in 0..valid.len() {
            for byte in 0..=u8::MAX {
                let mut text = *valid;
                text[at] = byte;
                let is_read = TraceParent::parse(&text).is_some();
                let is_field = byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
                assert!(!is_read || is_field || byte == b'-', "{at} {byte}");
            }
            assert_eq!(TraceParent::parse(&valid[..at]), None);
        }
    }

    #[test]
    fn two_contexts_are_none() {
        let mut headers = HeaderMap::new();
        assert_eq!(TraceParent::of_headers(&headers), None);
        let value = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        headers.append("traceparent", value.parse().unwrap());
        assert!(TraceParent::of_headers(&headers).is_some());
        headers.append("traceparent", value.parse().unwrap());
        assert_eq!(TraceParent::of_headers(&headers), None);
    }
}
