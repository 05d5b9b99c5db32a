//! The normal form of paths and hosts, so that one resource has one key.

use std::borrow::Cow;

/// Normalizes the path of a URI: no query, no fragment, no `.` and `..`, no empty segments, no needless escapes, and escapes
/// in upper case.
pub fn normalize_path(uri: &[u8]) -> Cow<'_, [u8]> {
    let end = uri.iter().position(|byte| b"?#".contains(byte)).unwrap_or(uri.len());
    let path = without_authority(uri.get(..end).unwrap_or(uri));
    if path.is_empty() {
        return Cow::Borrowed(b"/");
    }
    let is_irregular = |pair: &[u8]| matches!(pair, [b'/', b'/' | b'.']);
    if path.first() != Some(&b'/') || !(path.contains(&b'%') || path.windows(2).any(is_irregular)) {
        return Cow::Borrowed(path);
    }
    let plain = unescape(path, is_unreserved);
    let mut path = Vec::with_capacity(plain.len());
    // It is a folder if it ends in a slash, `.` or `..`.
    let mut is_folder = false;
    for segment in plain.split(|byte| *byte == b'/') {
        is_folder = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" | b"." => {}
            b".." => path.truncate(path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)),
            _ => {
                path.push(b'/');
                path.extend_from_slice(segment);
            }
        }
    }
    if is_folder {
        path.push(b'/');
    }
    Cow::Owned(path)
}

/// The part behind scheme and host, if a client sent them.
fn without_authority(uri: &[u8]) -> &[u8] {
    if uri.first() == Some(&b'/') {
        return uri;
    }
    let Some(scheme) = uri.windows(3).position(|three| three == b"://") else {
        return uri;
    };
    let rest = uri.get(scheme + 3..).unwrap_or_default();
    let path = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
    rest.get(path..).unwrap_or_default()
}

/// Normalizes a host: lower case, no user, no port, no final dot.
pub fn normalize_host(value: &[u8]) -> Cow<'_, [u8]> {
    let host = value.iter().rposition(|byte| *byte == b'@').map_or(0, |at| at + 1);
    let value = value.get(host..).unwrap_or_default();
    let mut parts = value.rsplitn(2, |byte| *byte == b':');
    let name = match (parts.next(), parts.next()) {
        (Some(port), Some(name)) if port.iter().all(u8::is_ascii_digit) => name,
        _ => value,
    };
    let name = name.strip_suffix(b".").unwrap_or(name);
    if name.iter().any(u8::is_ascii_uppercase) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    }
}

/// Decodes the escapes of bytes that `should_decode` accepts. Other escapes become upper case.
pub fn unescape(text: &[u8], should_decode: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let escaped = match (first, after) {
            (b'%', [high, low, after @ ..]) => hex(*high).zip(hex(*low)).map(|digits| (digits, [*high, *low], after)),
            _ => None,
        };
        match escaped {
            None => plain.push(*first),
            Some(((high, low), hex_digits, after)) => {
                rest = after;
                let byte = high << 4 | low;
                if should_decode(byte) {
                    plain.push(byte);
                } else {
                    plain.push(b'%');
                    plain.extend(hex_digits.map(|digit| digit.to_ascii_uppercase()));
                }
            }
        }
    }
    plain
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

/// True for bytes that mean the same escaped or not (RFC 3986, 2.3).
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}
