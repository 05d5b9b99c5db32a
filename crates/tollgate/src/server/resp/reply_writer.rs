//! Writes replies.

use std::fmt;
use tollgate_limiter::core::algorithm::cell::Reply;

/// The version of the protocol, chosen by `HELLO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RespVersion {
    Two = 2,
    Three = 3,
}

/// The text of an error reply: the code first, without the dash.
pub(super) type ErrorReply = String;

/// Appends replies to a buffer.
pub(super) struct ReplyWriter<'o>(pub(super) &'o mut Vec<u8>);

impl ReplyWriter<'_> {
    pub(super) fn simple(&mut self, text: &str) {
        self.0.push(b'+');
        self.0.extend_from_slice(text.as_bytes());
        self.0.extend_from_slice(b"\r\n");
    }

    /// An error. Control characters, which could end the line, become spaces.
    pub(super) fn error(&mut self, text: &str) {
        self.0.push(b'-');
        self.0
            .extend(text.bytes().map(|byte| if byte < b' ' { b' ' } else { byte }));
        self.0.extend_from_slice(b"\r\n");
    }

    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.head(b'$', bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self.0.extend_from_slice(b"\r\n");
    }

    pub(super) fn null(&mut self, version: RespVersion) {
        self.0.extend_from_slice(match version {
            RespVersion::Two => b"$-1\r\n",
            RespVersion::Three => b"_\r\n",
        });
    }

    pub(super) fn integer(&mut self, number: u64) {
        self.head(b':', number);
    }

    /// −1 for none.
    pub(super) fn integer_or_none(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.integer(number),
            None => self.0.extend_from_slice(b":-1\r\n"),
        }
    }

    pub(super) fn array(&mut self, elements: u64) {
        self.head(b'*', elements);
    }

    /// A map of `pairs`; in RESP2 an array of twice as many elements.
    pub(super) fn map(&mut self, pairs: u64, version: RespVersion) {
        match version {
            RespVersion::Two => self.array(2 * pairs),
            RespVersion::Three => self.head(b'%', pairs),
        }
    }

    /// The five integers of `CL.THROTTLE`.
    #[inline]
    pub(super) fn throttle(&mut self, reply: &Reply) {
        self.0.reserve(REPLY_BYTES);
        self.0.extend_from_slice(if reply.limited {
            b"*5\r\n:1\r\n"
        } else {
            b"*5\r\n:0\r\n"
        });
        self.integer(reply.limit);
        self.integer(reply.remaining);
        self.integer_or_none(reply.retry_after_s);
        self.integer(reply.reset_after_s);
    }

    #[inline]
    fn head(&mut self, kind: u8, number: u64) {
        self.0.push(kind);
        // Most numbers have one or two digits.
        match number {
            0..10 => self.0.push(b'0' + number as u8),
            10..100 => self
                .0
                .extend_from_slice(&[b'0' + (number / 10) as u8, b'0' + (number % 10) as u8]),
            _ => self
                .0
                .extend_from_slice(itoa::Buffer::new().format(number.min(INTEGER_MAX)).as_bytes()),
        }
        self.0.extend_from_slice(b"\r\n");
    }
}

/// More than the size of five integers.
const REPLY_BYTES: usize = 128;
/// Integers on the wire have a sign.
const INTEGER_MAX: u64 = i64::MAX as u64;

/// A caller's bytes in an error: their start, as text.
pub(super) struct Escaped<'a>(pub(super) &'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prefix, _) = self.0.split_at(self.0.len().min(ESCAPED_BYTES_MAX));
        f.write_str(&String::from_utf8_lossy(prefix))
    }
}

const ESCAPED_BYTES_MAX: usize = 128;
