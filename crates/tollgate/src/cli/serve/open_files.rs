//! How many files the system lets a server have open: each connection is one.

/// Raises the limit as far as this user may: many systems begin with 1,024 for programs that wait for files in a way a server
/// does not, and allow far more. Says so if it is still less than `connections` and what else is open.
pub(super) fn raise_limit(connections: usize) {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) if limit < (connections as u64).saturating_add(OTHER_FILES) => tracing::warn!(
            limit,
            connections,
            "the system allows fewer open files than connections: further ones wait; raise its limit (`ulimit -H -n`), or \
             lower server.limits.connections"
        ),
        Ok(limit) => tracing::debug!(limit, "the limit of open files is as high as it goes"),
        Err(error) => tracing::warn!(%error, "cannot raise the limit of open files"),
    }
}

/// Files of rules, certificates, the log, the listener, what the runtime waits with.
const OTHER_FILES: u64 = 64;
