//! The deciding core of Tollgate.
