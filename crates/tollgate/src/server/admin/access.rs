//! Access to the admin API: credentials, sessions, codes, and the callers they belong to.

pub(super) mod browser;
pub(super) mod login_limit;
pub(super) mod rights;
pub(super) mod secrets;

use self::login_limit::LoginLimit;
use self::rights::{Caller, CallerKind};
use self::secrets::{PasswordHashing, digest, equal, random_code};
use super::problem::AdminProblem;
use super::settings::{AdminSettings, AdminToken, AnonymousAccess};
use crate::control::Control;
pub(super) use crate::control::database::now_ms;
use crate::control::database::{Database, DatabaseError};
use crate::control::model::{Digest, Principal, PrincipalKind, Role};
use crate::server::auth::tokens::single_header;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, COOKIE};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The credentials that are valid, and the limits on guessing them.
#[derive(Debug)]
pub(super) struct AccessControl {
    settings: AdminSettings,
    /// The code that creates the first admin.
    pub(super) setup_code: String,
    /// The code of the printed link for viewers.
    pub(super) view_code: String,
    /// True once a principal was seen: principals are disabled, never deleted.
    has_principal: AtomicBool,
    pub(super) logins: LoginLimit,
    pub(super) passwords: PasswordHashing,
    /// Sessions by the printed link, until their end.
    views: Mutex<HashMap<Digest, Instant>>,
    /// Callers by their session, for a time in which the database is unavailable.
    recent: Mutex<HashMap<Digest, (Caller, Instant)>>,
    /// The last time that the database has not answered for a session in the whole time of a call.
    unanswered: Mutex<Option<Instant>>,
    /// The last minute in which a failed login of an address was audited.
    audited_failures: Mutex<HashMap<IpAddr, Instant>>,
}

/// The effect of an authentication on the idle time of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionUse {
    /// Someone used it: its idle time starts again.
    Request,
    /// Only a check whether it is still valid.
    Check,
}

/// The result of reading a session from the database.
enum LookUp<T> {
    Found(T),
    /// The database does not answer, and the session was valid within the last minute.
    Recent(Caller),
}

impl AccessControl {
    pub(super) fn new(settings: AdminSettings) -> Self {
        Self {
            has_principal: AtomicBool::new(settings.tokens.iter().any(AdminToken::is_full_admin)),
            settings,
            setup_code: random_code(3),
            view_code: random_code(2),
            logins: LoginLimit::new(),
            passwords: PasswordHashing::new(),
            views: Mutex::default(),
            recent: Mutex::default(),
            unanswered: Mutex::default(),
            audited_failures: Mutex::default(),
        }
    }

    /// True once a principal exists: then the codes are void.
    pub(super) async fn has_principal(&self, database: Option<&Database>) -> Result<bool, DatabaseError> {
        if self.has_principal.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let found = match database {
            Some(database) => database.has_principals().await?,
            None => false,
        };
        if found {
            self.close_setup();
        }
        Ok(found)
    }

    /// Makes the codes void.
    pub(super) fn close_setup(&self) {
        self.has_principal.store(true, Ordering::Relaxed);
        self.views.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Starts a session by the printed link.
    pub(super) fn add_view(&self, session: Digest) {
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        views.retain(|_, end| *end > now);
        if views.len() < VIEWS_MAX {
            views.insert(session, now + SESSION_TIME);
        }
    }

    /// Ends a session by the printed link.
    pub(super) fn remove_view(&self, session: &Digest) {
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        views.remove(session);
    }

    /// True if a failed login of this address is to be audited: once a minute.
    pub(super) fn audits_failure(&self, address: IpAddr) -> bool {
        let mut audited = self.audited_failures.lock().unwrap_or_else(PoisonError::into_inner);
        audited.retain(|_, at| at.elapsed() < Duration::from_secs(60));
        audited.len() < VIEWS_MAX && audited.insert(address, Instant::now()).is_none()
    }

    /// The caller of a request; none without a credential. A credential that is not valid is an error.
    pub(super) async fn authenticate(
        &self,
        headers: &HeaderMap,
        cookie_name: &str,
        peer: IpAddr,
        control: &Control,
        session_use: SessionUse,
    ) -> Result<Option<Caller>, AdminProblem> {
        if headers.contains_key(AUTHORIZATION) {
            let token = single_header(headers, &AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
            let token = token.ok_or_else(AdminProblem::unauthorized)?;
            return self.by_token(token, control).await.map(Some);
        }
        if let Some(session) = session_cookie(headers, cookie_name)
            && let Some(caller) = self
                .by_session(&digest(session.as_bytes()), control, session_use)
                .await?
        {
            return Ok(Some(caller));
        }
        let is_loopback = peer.to_canonical().is_loopback();
        let role = match self.settings.anonymous {
            AnonymousAccess::Viewer if is_loopback => Role::Viewer,
            AnonymousAccess::Admin if is_loopback => Role::Admin,
            _ => return Ok(None),
        };
        Ok(Some(Caller::without_principal(
            CallerKind::Anonymous,
            "anonymous",
            role,
        )))
    }

    async fn by_token(&self, token: &str, control: &Control) -> Result<Caller, AdminProblem> {
        let presented = digest(token.as_bytes());
        // All are compared: the time says nothing about them.
        let mut found = None;
        for known in &self.settings.tokens {
            if equal(&known.sha256.0, &presented.0) {
                found = Some(known);
            }
        }
        if let Some(known) = found {
            let caller = Caller::without_principal(CallerKind::Settings, &known.name, known.role);
            let domains = known.domains.clone();
            return Ok(Caller { domains, ..caller });
        }
        let (id, secret) = split_token(token).ok_or_else(AdminProblem::unauthorized)?;
        let database = control.database().ok_or_else(AdminProblem::unauthorized)?;
        let principal = database.principal_by_id(id).await?;
        let secret = digest(secret.as_bytes()).to_string();
        // An id that nobody has is compared as well.
        let known = principal.as_ref().map_or(UNKNOWN_SECRET, |principal| &principal.secret);
        let is_equal = equal(known.as_bytes(), secret.as_bytes());
        match principal {
            Some(principal) if principal.kind == PrincipalKind::Token && is_equal && is_active(&principal) => {
                if now_ms().saturating_sub(principal.seen_at) > TOUCH_MS
                    && let Ok(database) = control.writable_database().await
                {
                    // The time of its last use is for people; a failure changes nothing.
                    let _ = database.touch_principal(&principal.id, now_ms()).await;
                }
                Ok(caller_of(principal, None))
            }
            _ => Err(AdminProblem::unauthorized()),
        }
    }

    async fn by_session(
        &self,
        id: &Digest,
        control: &Control,
        session_use: SessionUse,
    ) -> Result<Option<Caller>, AdminProblem> {
        let database = control.database();
        let is_view = {
            let views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
            views.get(id).is_some_and(|end| *end > Instant::now())
        };
        if is_view && !self.has_principal(database).await? {
            let caller = Caller::without_principal(CallerKind::View, "view", Role::Viewer);
            let session = Some(*id);
            return Ok(Some(Caller { session, ..caller }));
        }
        let Some(database) = database else { return Ok(None) };
        let now = now_ms();
        let stored = async {
            let Some(session) = database.session(id).await? else {
                return Ok(None);
            };
            let principal = database.principal_by_id(&session.principal).await?;
            Ok(principal.map(|principal| (session, principal)))
        };
        let stored = match self.look_up(id, stored).await? {
            LookUp::Found(stored) => stored,
            LookUp::Recent(caller) => return Ok(Some(caller)),
        };
        let valid = stored.filter(|(session, principal)| {
            now < session.expires_at && now.saturating_sub(session.seen_at) <= IDLE_MS && is_active(principal)
        });
        let Some((session, principal)) = valid else {
            self.forget_recent(id);
            return Ok(None);
        };
        if session_use == SessionUse::Request
            && now.saturating_sub(session.seen_at) > TOUCH_MS
            && let Ok(database) = control.writable_database().await
        {
            let _ = database.touch_session(id, now).await;
        }
        let caller = caller_of(principal, Some(*id));
        self.remember(*id, &caller);
        Ok(Some(caller))
    }

    /// Reads a session from the database. While the database is unavailable, one that was valid within the last minute still is.
    ///
    /// An answer is waited for as long as a call may take: one that is late may end the session. Only for a moment after the
    /// database was silent for so long, the wait is short.
    async fn look_up<T>(
        &self,
        session: &Digest,
        stored: impl Future<Output = Result<T, DatabaseError>>,
    ) -> Result<LookUp<T>, AdminProblem> {
        let Some(caller) = self.recent(session) else {
            return Ok(LookUp::Found(stored.await?));
        };
        let was_unanswered = self.unanswered().is_some_and(|at| at.elapsed() < UNANSWERED);
        let limit = if was_unanswered { SHORT_WAIT } else { Duration::MAX };
        match timeout(limit, stored).await {
            Ok(Ok(found)) => {
                *self.unanswered() = None;
                Ok(LookUp::Found(found))
            }
            Ok(Err(DatabaseError::Unavailable(_))) => {
                *self.unanswered() = Some(Instant::now());
                Ok(LookUp::Recent(caller))
            }
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Ok(LookUp::Recent(caller)),
        }
    }

    fn unanswered(&self) -> MutexGuard<'_, Option<Instant>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A caller that was authenticated within the last minute.
    fn recent(&self, session: &Digest) -> Option<Caller> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let (caller, at) = recent.get(session)?;
        (at.elapsed() < RECENT).then(|| caller.clone())
    }

    fn remember(&self, session: Digest, caller: &Caller) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() >= RECENT_MAX {
            recent.retain(|_, (_, at)| at.elapsed() < RECENT);
        }
        if recent.len() < RECENT_MAX {
            recent.insert(session, (caller.clone(), Instant::now()));
        }
    }

    /// Ends what is remembered of a session.
    pub(super) fn forget_recent(&self, session: &Digest) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.remove(session);
    }

    /// Ends what is remembered of a principal.
    pub(super) fn forget_principal(&self, id: &str) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.retain(|_, (caller, _)| caller.id != id);
    }
}

/// True if a principal may be used.
pub(super) fn is_active(principal: &Principal) -> bool {
    principal.disabled_at == 0 && (principal.expires_at == 0 || now_ms() < principal.expires_at)
}

/// The cookie of the session.
pub(super) fn session_cookie(headers: &HeaderMap, name: &str) -> Option<String> {
    let values = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut found = values
        .flat_map(cookie::Cookie::split_parse)
        .filter_map(Result::ok)
        .filter(|cookie| cookie.name() == name);
    let first = found.next()?;
    // Two of one name: another port of the host set one; neither is trusted.
    found.next().is_none().then(|| first.value().to_owned())
}

fn caller_of(principal: Principal, session: Option<Digest>) -> Caller {
    Caller {
        id: principal.id,
        name: principal.name,
        kind: match principal.kind {
            PrincipalKind::User => CallerKind::User,
            PrincipalKind::Token => CallerKind::Token,
        },
        role: principal.role,
        domains: principal.domains,
        session,
    }
}

/// The token of `Bearer …`.
fn bearer(value: &[u8]) -> Option<&str> {
    let (scheme, token) = std::str::from_utf8(value).ok()?.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case("bearer ").then(|| token.trim())
}

/// The id and the secret of `tgt_<id>_<secret>`.
fn split_token(token: &str) -> Option<(&str, &str)> {
    token.strip_prefix("tgt_")?.split_once('_')
}

/// The absolute length of a session.
pub(super) const SESSION_TIME: Duration = Duration::from_secs(12 * 3_600);
const IDLE_MS: u64 = 30 * 60_000;
/// The time of the last use is stored no more often.
const TOUCH_MS: u64 = 60_000;
/// The time for which a session stays valid while the database is unavailable.
const RECENT: Duration = Duration::from_secs(60);
/// The time after a call without an answer in which the wait for the next one is short. A session that is ended everywhere is in use
/// for no longer.
const UNANSWERED: Duration = Duration::from_millis(500);
const SHORT_WAIT: Duration = Duration::from_millis(300);
/// No digest: nothing is equal to it.
const UNKNOWN_SECRET: &str = "0000000000000000000000000000000000000000000000000000000000000000";
const RECENT_MAX: usize = 1_024;
const VIEWS_MAX: usize = 1_024;
