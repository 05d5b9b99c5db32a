//! The open event streams of the admin API: bounded in all and for each caller, whose credential is checked once for all of its streams.

use super::access::rights::Caller;
use super::problem::AdminProblem;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// All open streams.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenStreams {
    callers: Arc<Mutex<HashMap<String, CallerStreams>>>,
}

/// The streams of one session, token or anonymous caller.
#[derive(Debug, Default)]
struct CallerStreams {
    count: usize,
    check: Arc<tokio::sync::Mutex<LastCheck>>,
}

/// The last check of a credential. None: it is no longer valid.
#[derive(Debug, Default)]
struct LastCheck(Option<(Instant, Option<Caller>)>);

/// The place of one stream, until it is dropped.
#[derive(Debug)]
pub(super) struct StreamPermit {
    streams: OpenStreams,
    key: String,
    check: Arc<tokio::sync::Mutex<LastCheck>>,
}

impl OpenStreams {
    /// Takes a place for a stream.
    ///
    /// # Errors
    /// There are too many, in all or of this caller.
    pub(super) fn open(&self, caller: &Caller) -> Result<StreamPermit, AdminProblem> {
        let key = match &caller.session {
            Some(session) => format!("session:{session}"),
            None => caller.id.clone(),
        };
        let mut callers = self.callers();
        if callers.values().map(|streams| streams.count).sum::<usize>() >= STREAMS_MAX {
            return Err(AdminProblem::busy(
                "too many event streams are open; close one, or poll /v1/series",
            ));
        }
        let streams = callers.entry(key.clone()).or_default();
        if streams.count >= CALLER_STREAMS_MAX {
            return Err(AdminProblem::busy(
                "too many event streams of this credential are open; close one, or poll /v1/series",
            ));
        }
        streams.count += 1;
        Ok(StreamPermit {
            check: Arc::clone(&streams.check),
            streams: self.clone(),
            key,
        })
    }

    fn callers(&self) -> MutexGuard<'_, HashMap<String, CallerStreams>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamPermit {
    /// The caller as a check of the last moment found it, of whichever of its streams, or else as `check` finds it now. None: its
    /// credential is no longer valid.
    pub(super) async fn check(&self, now: Instant, check: impl Future<Output = Option<Caller>>) -> Option<Caller> {
        let mut last = self.check.lock().await;
        if let Some((at, caller)) = &last.0
            && now.saturating_duration_since(*at) < CHECK_AGE
        {
            return caller.clone();
        }
        let caller = check.await;
        last.0 = Some((now, caller.clone()));
        caller
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut callers = self.streams.callers();
        if let Some(streams) = callers.get_mut(&self.key) {
            streams.count -= 1;
            if streams.count == 0 {
                callers.remove(&self.key);
            }
        }
    }
}

/// Streams at a time.
const STREAMS_MAX: usize = 64;
/// Streams of one session, token or anonymous caller: a browser has one for all of its tabs.
const CALLER_STREAMS_MAX: usize = 8;
/// A check of another stream of the same credential counts for so long.
const CHECK_AGE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::super::access::rights::CallerKind;
    use super::*;
    use crate::control::model::Role;
    use std::cell::Cell;

    fn caller(name: &str) -> Caller {
        Caller::without_principal(CallerKind::Settings, name, Role::Viewer)
    }

    #[test]
    fn no_caller_takes_the_places_of_all() {
        let streams = OpenStreams::default();
        let mut places: Vec<StreamPermit> = Vec::new();
        for name in ["a", "b"] {
            places.extend((0..8).map(|_| streams.open(&caller(name)).expect("a place")));
            assert!(streams.open(&caller(name)).is_err());
        }
        places.truncate(8);
        assert!(streams.open(&caller("b")).is_ok());
        for index in 0..7 {
            places.extend((0..8).map(|_| streams.open(&caller(&format!("c{index}"))).expect("a place")));
        }
        assert!(streams.open(&caller("d")).is_err(), "64 in all");
        places.clear();
        assert!(streams.callers().is_empty());
    }

    #[tokio::test]
    async fn the_streams_of_a_credential_share_a_check() {
        let streams = OpenStreams::default();
        let places: Vec<StreamPermit> = (0..8).map(|_| streams.open(&caller("a")).expect("a place")).collect();
        let other = streams.open(&caller("b")).expect("a place");
        let start = Instant::now();
        let checks = Cell::new(0);
        let check = |caller: Option<Caller>| {
            let checks = &checks;
            async move {
                checks.set(checks.get() + 1);
                caller
            }
        };
        for place in &places {
            assert_eq!(place.check(start, check(Some(caller("a")))).await, Some(caller("a")));
        }
        assert_eq!(checks.get(), 1);
        assert_eq!(other.check(start, check(Some(caller("b")))).await, Some(caller("b")));
        // It was logged out.
        for place in &places {
            assert_eq!(place.check(start + CHECK_AGE, check(None)).await, None);
        }
        assert_eq!(checks.get(), 3);
    }
}
