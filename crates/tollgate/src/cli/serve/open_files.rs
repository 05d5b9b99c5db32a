//! The limit of open files: each connection takes one.

/// Raises the soft limit to the hard limit: many systems start with 1,024, for programs that use `select`, and allow far
/// more. Warns if that is still below `connections`.
pub(super) fn raise_limit(connections: usize) {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) if limit < (connections as u64).saturating_add(OTHER_FILES) => tracing::warn!(
            limit,
            connections,
            "the limit of open files is below server.limits.connections; connections above it wait; raise it \
             (`ulimit -H -n`), or lower server.limits.connections"
        ),
        Ok(limit) => tracing::debug!(limit, "limit of open files raised to the hard limit"),
        Err(error) => tracing::warn!(%error, "cannot raise the limit of open files"),
    }
}

/// Rule files, certificates, the log, listeners, the runtime's own.
const OTHER_FILES: u64 = 64;
