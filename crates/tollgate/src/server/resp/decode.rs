//! Decodes commands: arrays of bulk strings, and inline commands.
//!
//! Arguments are borrowed from the input, so a declared length costs no memory.

use std::fmt;

/// The most arguments of one command, its name among them.
pub const ARGUMENTS_MAX: usize = 64;
/// The longest argument.
pub const ARGUMENT_BYTES_MAX: usize = 8 * 1024;
/// The longest inline command.
pub const LINE_BYTES_MAX: usize = 8 * 1024;

/// The arguments of one command, borrowed from the input.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    all: [&'a [u8]; ARGUMENTS_MAX],
    count: usize,
}

/// A protocol error. The connection has to close: the start of the next command is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The type of an element is not followed by a number and a line end.
    Number,
    /// More than [`ARGUMENTS_MAX`].
    Arguments,
    /// Longer than [`ARGUMENT_BYTES_MAX`], or of a negative length.
    Length,
    /// An element that is no bulk string, such as a nested array.
    Element,
    /// A bulk string that does not end at its length.
    End,
    /// A line of more than [`LINE_BYTES_MAX`].
    Line,
    /// An unbalanced quote, text right behind a closing quote, or a backslash in quotes.
    Quote,
}

impl<'a> Arguments<'a> {
    /// No arguments.
    pub const fn new() -> Self {
        Self {
            all: [b""; ARGUMENTS_MAX],
            count: 0,
        }
    }

    /// All arguments.
    #[inline]
    pub fn all(&self) -> &[&'a [u8]] {
        self.all.get(..self.count).unwrap_or_default()
    }

    #[inline]
    fn push(&mut self, argument: &'a [u8]) -> Result<(), DecodeError> {
        let slot = self.all.get_mut(self.count).ok_or(DecodeError::Arguments)?;
        *slot = argument;
        self.count += 1;
        Ok(())
    }
}

impl Default for Arguments<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// Decodes the first command of `bytes`, and returns the bytes it takes; none if it is incomplete. An empty line and an
/// empty array are a command without arguments.
///
/// # Errors
/// A protocol error: no further bytes can complete the command.
#[inline]
pub fn decode<'a>(bytes: &'a [u8], arguments: &mut Arguments<'a>) -> Result<Option<usize>, DecodeError> {
    arguments.count = 0;
    match bytes.first() {
        None => Ok(None),
        Some(b'*') => array(bytes, arguments),
        Some(_) => line(bytes, arguments),
    }
}

#[inline(always)]
fn array<'a>(bytes: &'a [u8], arguments: &mut Arguments<'a>) -> Result<Option<usize>, DecodeError> {
    let Some((count, mut rest)) = number(bytes)? else {
        return Ok(None);
    };
    // A null array is skipped like an empty one.
    let count = usize::try_from(count.max(0)).map_err(|_| DecodeError::Arguments)?;
    if count > ARGUMENTS_MAX {
        return Err(DecodeError::Arguments);
    }
    for _ in 0..count {
        match rest.first() {
            None => return Ok(None),
            Some(b'$') => {}
            Some(_) => return Err(DecodeError::Element),
        }
        let Some((length, behind)) = number(rest)? else {
            return Ok(None);
        };
        let length = usize::try_from(length).map_err(|_| DecodeError::Length)?;
        if length > ARGUMENT_BYTES_MAX {
            return Err(DecodeError::Length);
        }
        let Some((argument, behind)) = behind.split_at_checked(length) else {
            return Ok(None);
        };
        rest = match behind {
            [b'\r', b'\n', behind @ ..] => behind,
            [] | [b'\r'] => return Ok(None),
            _ => return Err(DecodeError::End),
        };
        arguments.push(argument)?;
    }
    Ok(Some(bytes.len() - rest.len()))
}

/// The number behind the first byte, and the bytes behind its line.
#[inline]
fn number(bytes: &[u8]) -> Result<Option<(i64, &[u8])>, DecodeError> {
    let mut rest = bytes.get(1..).unwrap_or_default();
    let is_negative = rest.first() == Some(&b'-');
    if is_negative {
        rest = rest.get(1..).unwrap_or_default();
    }
    let mut number = 0_i64;
    for digits in 0..=DIGITS_MAX {
        match rest {
            [] | [b'\r'] => return Ok(None),
            [digit @ b'0'..=b'9', behind @ ..] if digits < DIGITS_MAX => {
                number = number * 10 + i64::from(digit - b'0');
                rest = behind;
            }
            [b'\r', b'\n', behind @ ..] if digits > 0 => {
                return Ok(Some((if is_negative { -number } else { number }, behind)));
            }
            _ => return Err(DecodeError::Number),
        }
    }
    Err(DecodeError::Number)
}

/// A number of more digits is out of range.
const DIGITS_MAX: usize = 10;

/// Decodes an inline command: words between spaces, or in quotes without backslashes.
fn line<'a>(bytes: &'a [u8], arguments: &mut Arguments<'a>) -> Result<Option<usize>, DecodeError> {
    let Some(end) = bytes.iter().take(LINE_BYTES_MAX + 2).position(|byte| *byte == b'\n') else {
        return if bytes.len() > LINE_BYTES_MAX + 1 {
            Err(DecodeError::Line)
        } else {
            Ok(None)
        };
    };
    let (line, _) = bytes.split_at(end);
    let mut rest = line.strip_suffix(b"\r").unwrap_or(line);
    if rest.len() > LINE_BYTES_MAX {
        return Err(DecodeError::Line);
    }
    loop {
        rest = rest.trim_ascii_start();
        let (word, behind) = match rest {
            [] => return Ok(Some(end + 1)),
            [quote @ (b'"' | b'\''), behind @ ..] => {
                let end = behind.iter().position(|byte| byte == quote).ok_or(DecodeError::Quote)?;
                let (word, behind) = behind.split_at(end);
                let behind = behind.get(1..).unwrap_or_default();
                if word.contains(&b'\\') || behind.first().is_some_and(|byte| !byte.is_ascii_whitespace()) {
                    return Err(DecodeError::Quote);
                }
                (word, behind)
            }
            _ => {
                let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
                rest.split_at(end)
            }
        };
        arguments.push(word)?;
        rest = behind;
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number => f.write_str("expected a number and a line's end"),
            Self::Arguments => write!(f, "a command has at most {ARGUMENTS_MAX} arguments"),
            Self::Length => write!(f, "an argument has from 0 to {ARGUMENT_BYTES_MAX} bytes"),
            Self::Element => f.write_str("a command is an array of bulk strings, expected '$'"),
            Self::End => f.write_str("an argument does not end where its length says"),
            Self::Line => write!(f, "a line has at most {LINE_BYTES_MAX} bytes"),
            Self::Quote => f.write_str("a word in quotes has no backslash, and a space or the line's end behind it"),
        }
    }
}

impl std::error::Error for DecodeError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Option<(usize, Vec<String>)>, DecodeError> {
        let mut arguments = Arguments::new();
        let used = decode(bytes, &mut arguments)?;
        let texts = || {
            let words = arguments.all().iter();
            words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
        };
        Ok(used.map(|used| (used, texts())))
    }

    #[test]
    fn commands_are_arrays_or_lines() {
        for (bytes, used, arguments) in [
            (&b"*1\r\n$4\r\nPING\r\n*1"[..], 14, &["PING"][..]),
            (b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", 20, &["ECHO", ""]),
            (b"*2\r\n$4\r\nECHO\r\n$4\r\na\r\nb\r\n", 24, &["ECHO", "a\r\nb"]),
            (b"*0\r\nPING", 4, &[]),
            (b"*-1\r\nPING", 5, &[]),
            (b"\r\n", 2, &[]),
            (b"PING\n", 5, &["PING"]),
            (b"  ECHO \t a  \r\n", 14, &["ECHO", "a"]),
            (b"ECHO \"a b\" 'c\"d' \"\"\r\n", 21, &["ECHO", "a b", "c\"d", ""]),
        ] {
            let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(read(bytes), Ok(Some((used, arguments))), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn what_has_not_all_arrived_is_waited_for() {
        for whole in [
            &b"*2\r\n$4\r\nECHO\r\n$12\r\nhello, world\r\n"[..],
            b"CL.THROTTLE k 1 2 3\r\n",
        ] {
            for end in 0..whole.len() {
                assert_eq!(read(&whole[..end]), Ok(None), "{}", whole[..end].escape_ascii());
            }
        }
    }

    #[test]
    fn what_can_be_no_command_is_refused_at_once() {
        let long = [b'a'; LINE_BYTES_MAX + 2];
        for (error, commands) in [
            (DecodeError::Arguments, &[&b"*65\r\n"[..], b"*1000000000\r\n"][..]),
            (
                DecodeError::Number,
                &[b"*99999999999", b"*abc\r\n", b"*\r\n", b"*1\n", b"*+1\r\n"],
            ),
            (
                DecodeError::Length,
                &[b"*1\r\n$-5\r\n", b"*1\r\n$-1\r\n", b"*1\r\n$8193\r\n"],
            ),
            (DecodeError::Element, &[b"*1\r\n*1\r\n", b"*1\r\n:1\r\n"]),
            (DecodeError::End, &[b"*1\r\n$1\r\nab\r\n"]),
            (DecodeError::Line, &[&long]),
            (
                DecodeError::Quote,
                &[b"ECHO \"a\r\n", b"ECHO \"a\"b\r\n", b"ECHO \"\\n\"\r\n"],
            ),
        ] {
            for bytes in commands {
                assert_eq!(read(bytes), Err(error), "{}", bytes.escape_ascii());
            }
        }
    }

    #[test]
    fn the_most_and_the_longest_are_taken() {
        let mut bytes = format!("*{ARGUMENTS_MAX}\r\n").into_bytes();
        for _ in 0..ARGUMENTS_MAX {
            bytes.extend(format!("${ARGUMENT_BYTES_MAX}\r\n").bytes());
            bytes.extend([b'a'; ARGUMENT_BYTES_MAX]);
            bytes.extend(b"\r\n");
        }
        let (used, arguments) = read(&bytes).unwrap().unwrap();
        assert_eq!((used, arguments.len()), (bytes.len(), ARGUMENTS_MAX));
        let mut line = vec![b'a'; LINE_BYTES_MAX];
        line.extend(b"\r\n");
        assert_eq!(read(&line).unwrap().unwrap().0, LINE_BYTES_MAX + 2);
    }
}
