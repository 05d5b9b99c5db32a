//! The deadline of a call, from `grpc-timeout`.

use hyper::HeaderMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::timeout;

/// The output of a future within a time. It is usually ready at the first poll, and no timer is created.
pub(super) async fn run_within<F: Future + Unpin>(limit: Duration, mut future: F) -> Option<F::Output> {
    let first = poll_fn(|cx| Poll::Ready(Pin::new(&mut future).poll(cx)));
    match first.await {
        Poll::Ready(output) => Some(output),
        Poll::Pending => timeout(limit, future).await.ok(),
    }
}

/// The timeout that a caller requests; none if the header is absent or invalid.
pub(super) fn requested_timeout(headers: &HeaderMap) -> Option<Duration> {
    let (unit, digits) = headers.get("grpc-timeout")?.as_bytes().split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits
        .iter()
        .fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    match unit {
        b'H' => Some(Duration::from_secs(number * 3_600)),
        b'M' => Some(Duration::from_secs(number * 60)),
        b'S' => Some(Duration::from_secs(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn a_time_is_digits_and_a_unit() {
        for (text, time) in [
            ("250m", Some(Duration::from_millis(250))),
            ("0m", Some(Duration::ZERO)),
            ("2H", Some(Duration::from_secs(7_200))),
            ("3M", Some(Duration::from_secs(180))),
            ("4S", Some(Duration::from_secs(4))),
            ("5u", Some(Duration::from_micros(5))),
            ("6n", Some(Duration::from_nanos(6))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3_600))),
            ("123456789m", None),
            ("m", None),
            ("-1m", None),
            ("1", None),
            ("1h", None),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", HeaderValue::from_static(text));
            assert_eq!(requested_timeout(&headers), time, "{text}");
        }
        assert_eq!(requested_timeout(&HeaderMap::new()), None);
    }
}
