//! Keys of limits, extracted from requests.

mod client_address;
mod normal_form;

pub use self::client_address::client_address;
pub use self::normal_form::{normalize_host, normalize_path, unescape};
