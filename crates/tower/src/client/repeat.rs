//! Copies of request bodies, for retries.

use http_body::Body;

/// Copies the body of a request before it is sent, so that it can be sent again.
pub trait RepeatBody<B> {
    /// A copy. None if the request cannot be repeated.
    fn copy(&self, body: &B) -> Option<B>;
}

/// Repeats any request: its body can be cloned.
#[derive(Clone, Copy, Debug, Default)]
pub struct RepeatCloned;

/// Repeats requests without a body.
#[derive(Clone, Copy, Debug, Default)]
pub struct RepeatEmpty;

/// Repeats none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NeverRepeat;

impl<B: Clone> RepeatBody<B> for RepeatCloned {
    fn copy(&self, body: &B) -> Option<B> {
        Some(body.clone())
    }
}

impl<B: Body + Default> RepeatBody<B> for RepeatEmpty {
    fn copy(&self, body: &B) -> Option<B> {
        body.is_end_stream().then(B::default)
    }
}

impl<B> RepeatBody<B> for NeverRepeat {
    fn copy(&self, _body: &B) -> Option<B> {
        None
    }
}
