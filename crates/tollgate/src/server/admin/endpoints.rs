//! The endpoints, by their subject. Each takes a request whose caller has the right, and makes the response.

pub(super) mod alerts;
pub(super) mod attributes;
pub(super) mod audit;
pub(super) mod documents;
pub(super) mod overrides;
pub(super) mod principals;
pub(super) mod rules;
pub(super) mod sessions;
mod stale;
pub(super) mod state;
pub(super) mod subjects;
pub(super) mod versions;
pub(super) mod watch;

use super::problem::AdminProblem;
use super::reply::Reply;

/// The response of an endpoint, or the problem in its stead.
pub(super) type EndpointResult = Result<Reply, AdminProblem>;
