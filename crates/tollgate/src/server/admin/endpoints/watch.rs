//! Figures of the running server: time series, refused subjects, the event stream, and checks from the dashboard.

pub(in crate::server::admin) mod check;
pub(in crate::server::admin) mod publish;
pub(in crate::server::admin) mod series;
pub(in crate::server::admin) mod stream;
pub(in crate::server::admin) mod top;
