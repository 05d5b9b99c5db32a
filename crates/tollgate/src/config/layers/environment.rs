//! The only file that reads the environment for settings. Clap reads `TOLLGATE_URL`, `TOLLGATE_TOKEN`,
//! `TOLLGATE_TOKEN_FILE`, `TOLLGATE_ADMIN_URL` and `TOLLGATE_ADMIN_TOKEN`, for the commands that call a server.

use crate::compat::ratelimit::env;

/// Every variable that may be a setting, ours or `ratelimit`'s. Bytes of a value that are not UTF-8 are replaced,
/// so that the setting is rejected and not ignored.
#[expect(
    clippy::disallowed_methods,
    reason = "here, and nowhere else, settings are read from the environment; everything else takes them as arguments"
)]
pub fn variables() -> Vec<(String, String)> {
    let mut variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name.starts_with("TOLLGATE_") || env::is_known(name))
        .map(|(name, value)| (name, value.to_string_lossy().into_owned()))
        .collect();
    // The order of the environment is arbitrary.
    variables.sort_unstable();
    variables
}
