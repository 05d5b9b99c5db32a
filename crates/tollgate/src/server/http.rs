//! The HTTP front end: the check API, health, metrics.

pub mod headers;
pub mod settings;

pub use headers::{Dialect, DialectError, Dialects};
pub use settings::{Bounds, HttpSettings, RetryAfter, RetryAfterFormat};
