//! The limiters of the admin API itself: guesses of passwords and codes are few, whatever the name they are for, and so are checks.

use std::net::IpAddr;
use tollgate_limiter::core::Decision;
use tollgate_limiter::limits::FixedWindow;
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::{Limiter, NamedLimit};

/// Limits on guesses. It is in memory and fails closed: an attempt that cannot be counted is denied.
pub(in crate::server::admin) struct LoginLimit {
    limiter: Limiter,
    /// Of an address and a name.
    per_name: Option<NamedLimit<Memory>>,
    /// Of an address.
    per_address: Option<NamedLimit<Memory>>,
}

impl LoginLimit {
    pub(in crate::server::admin) fn new() -> Self {
        let limiter = Limiter::in_memory();
        Self {
            per_name: limiter.limit("login-name", FixedWindow::per_minute(PER_NAME)).ok(),
            per_address: limiter
                .limit("login-address", FixedWindow::per_minute(PER_ADDRESS))
                .ok(),
            limiter,
        }
    }

    /// Counts an attempt. False if it is denied.
    pub(in crate::server::admin) fn allows(&self, address: IpAddr, name: &str) -> bool {
        let address = network(address);
        let (Some(per_name), Some(per_address)) = (&self.per_name, &self.per_address) else {
            return false;
        };
        let is_allowed = |limit, subject: String| matches!(self.limiter.check(limit, subject), Decision::Allow { .. });
        is_allowed(per_address, address.clone()) && is_allowed(per_name, format!("{address}\n{name}"))
    }
}

/// The limit on checks from the dashboard: they are for trying rules, not for traffic.
pub(in crate::server::admin) struct CheckLimit {
    limiter: Limiter,
    per_caller: Option<NamedLimit<Memory>>,
}

impl CheckLimit {
    pub(in crate::server::admin) fn new() -> Self {
        let limiter = Limiter::in_memory();
        Self {
            per_caller: limiter
                .limit("dashboard-checks", FixedWindow::per_minute(CHECKS_PER_CALLER))
                .ok(),
            limiter,
        }
    }

    /// Counts a check of a caller. False if it is denied.
    pub(in crate::server::admin) fn allows(&self, caller: &str) -> bool {
        let Some(per_caller) = &self.per_caller else {
            return false;
        };
        matches!(self.limiter.check(per_caller, caller), Decision::Allow { .. })
    }
}

impl std::fmt::Debug for LoginLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoginLimit").finish_non_exhaustive()
    }
}

/// The network of an address that one client controls.
fn network(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
    }
}

const PER_NAME: u64 = 5;
const PER_ADDRESS: u64 = 20;
const CHECKS_PER_CALLER: u64 = 300;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_are_few_for_a_name_and_for_an_address() {
        let limit = LoginLimit::new();
        let address = IpAddr::from([192, 0, 2, 1]);
        let allowed = (0..9).filter(|_| limit.allows(address, "anna")).count();
        // A minute may begin in between.
        assert!((5..=9).contains(&allowed), "{allowed}");
        let allowed = (0..60)
            .filter(|number| limit.allows(address, &number.to_string()))
            .count();
        assert!(allowed <= 40, "{allowed}");
        assert!(limit.allows(IpAddr::from([192, 0, 2, 2]), "anna"));
    }
}
