//! What a store is: it keeps what the core decides, all charges of a request at one moment.

#[cfg(feature = "redis")]
pub mod fallback;
mod hits;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;

pub use self::hits::{Hit, HitOp};

use std::fmt;
use std::future::Future;
pub use tollgate_core::Source;
use tollgate_core::{Charge, Cost, Counter, Decision, LeaseId, Limit, Micros, Policy, Receipt, Timestamp};

/// Remembers counters and owns the clock they run on.
///
/// Every call happens at one moment of the store's clock. [`crate::conformance`] is what an implementation must do.
pub trait Store: Send + Sync {
    /// Who decides while the store is well.
    const SOURCE: Source = Source::Memory;

    /// How the store names a counter.
    type Key: Key;

    /// What of a counter's key does not depend on its subject: worked out once for a rule.
    type Template: Clone + Send + Sync;

    /// The part of the key that all subjects of a counter's rule share. Its `per` values do not matter.
    fn template(&self, counter: &Counter<'_>) -> Self::Template;

    /// The key of one subject, given by the values it is counted by.
    fn key(&self, template: &Self::Template, per: &[&[u8]]) -> Self::Key;

    /// How a key is printed, for whoever wants to look it up in the store.
    fn key_text(&self, key: &Self::Key) -> String {
        let mut bytes = Vec::new();
        key.write(&mut bytes);
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether it would certainly answer for none of these charges just now: asking it would be in vain.
    fn is_unavailable(&self, charges: &[Charge<Self::Key>]) -> bool {
        let _ = charges;
        false
    }

    /// Settles the charges of one request: all kept, or none, as their policies say. `lease` names what it holds of
    /// concurrency limits.
    fn settle(&self, charges: &[Charge<Self::Key>], lease: LeaseId) -> impl Future<Output = Settlement> + Send;

    /// Settles several requests, each on its own and in order, as if one were settled after the other. A shared store sends
    /// them as one pipeline instead of one round trip each.
    ///
    /// Returns one settlement per request, in order.
    fn settle_each(&self, requests: &[SettleRequest<'_, Self::Key>]) -> impl Future<Output = Vec<Settlement>> + Send {
        async move {
            let mut settlements = Vec::with_capacity(requests.len());
            for request in requests {
                settlements.push(self.settle(request.charges, request.lease).await);
            }
            settlements
        }
    }

    /// The same, but keeps nothing.
    fn peek(&self, charges: &[Charge<Self::Key>]) -> impl Future<Output = Settlement> + Send;

    /// Takes one kept charge back.
    fn undo(
        &self,
        key: Self::Key,
        limit: &Limit,
        receipt: &Receipt,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Takes back what was kept of a request that does not go on although none of its charges refuses, because others
    /// could not be decided. Its outcomes then tell how their keys stand.
    fn compensate(
        &self,
        charges: &[Charge<Self::Key>],
        settlement: &mut Settlement,
    ) -> impl Future<Output = ()> + Send {
        async move {
            let kept: Vec<usize> = settlement.kept_charges(charges).collect();
            for &index in kept.iter().rev() {
                if let (Some(charge), Some(Ok(outcome))) = (charges.get(index), settlement.outcomes.get(index))
                    && charge.cost > Cost::ZERO
                {
                    // One that fails costs its key the units until they come back by themselves.
                    let _ = self.undo(charge.key, &charge.limit, &outcome.receipt).await;
                }
            }
            for index in kept {
                let Some(charge) = charges.get(index) else { continue };
                let peeked = self.peek(&[charge.as_peek()]).await;
                if let Some(Ok(peeked)) = peeked.outcomes.first() {
                    settlement.update_standing(index, peeked.decision);
                }
            }
        }
    }

    /// Gives the cost of a charge back, never above full, and says how its key then stands, and who says so.
    fn refund(&self, charge: &Charge<Self::Key>)
    -> impl Future<Output = Result<(Decision, Source), StoreError>> + Send;

    /// Gives back what a lease holds. False if it holds nothing any more.
    fn release(
        &self,
        key: Self::Key,
        limit: &Limit,
        lease: LeaseId,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Lets a lease last a whole term from now and says how long that is. Nothing if it is not held any more.
    fn renew(
        &self,
        key: Self::Key,
        limit: &Limit,
        lease: LeaseId,
    ) -> impl Future<Output = Result<Option<Micros>, StoreError>> + Send;

    /// Clears a counter. False if there was nothing to clear.
    fn forget(&self, key: Self::Key, limit: &Limit) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Whether it counts as envoyproxy/ratelimit does, in that one's keys. Then charges that are counted so are brought as
    /// hits, and not settled.
    fn takes_hits(&self) -> bool {
        false
    }

    /// Counts hits, all of one request. None refuses: outcomes tell what is counted.
    fn hit(&self, hits: &[Hit<'_, Self::Key>], op: HitOp) -> impl Future<Output = Settlement> + Send {
        let unavailable = Settlement {
            allowed: false,
            now: Timestamp::EPOCH,
            outcomes: vec![Err(StoreError::Unavailable); hits.len()],
        };
        let _ = op;
        async move { unavailable }
    }

    /// Clears what was hit in the window that runs. False if there was nothing to clear.
    fn forget_hits(&self, hit: &Hit<'_, Self::Key>) -> impl Future<Output = Result<bool, StoreError>> + Send {
        let _ = hit;
        async { Err(StoreError::Unavailable) }
    }

    /// How the key of a hit is printed, for whoever wants to look it up in the store.
    fn hit_key_text(&self, hit: &Hit<'_, Self::Key>) -> String {
        self.key_text(&hit.charge.key)
    }
}

/// How a store names a counter: of a fixed size, without a caller's bytes in it.
pub trait Key: Copy + Eq + Send + Sync + fmt::Debug {
    /// How many bytes stand for it.
    const LENGTH: usize;

    /// Adds the bytes that stand for it, here and on every instance that shares the store.
    fn write(&self, bytes: &mut Vec<u8>);

    /// Bits of it that hardly any other key has, for finding it in a table.
    fn bits(&self) -> u128;

    /// The key that these bytes stand for. Nothing if they cannot be one's.
    fn read(bytes: &[u8]) -> Option<Self>;
}

/// The charges of one of several requests that are settled in one call.
#[derive(Clone, Copy, Debug)]
pub struct SettleRequest<'a, K> {
    /// The charges: all kept, or none, as their policies say.
    pub charges: &'a [Charge<K>],
    /// The lease it takes of concurrency limits.
    pub lease: LeaseId,
}

/// What settling a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Whether the request passes.
    pub allowed: bool,
    /// The moment it was settled at, on the store's clock.
    pub now: Timestamp,
    /// For each charge, in order. A store of several nodes may have lost one of them; unless a charge refuses, those of the
    /// others are kept all the same.
    pub outcomes: Vec<Result<Outcome, StoreError>>,
}

impl Settlement {
    /// Whether a charge refuses the request. Else those that could be decided were kept.
    pub fn is_denied<K>(&self, charges: &[Charge<K>]) -> bool {
        let denies = |(charge, outcome): (&Charge<K>, &Result<Outcome, StoreError>)| {
            charge.policy != Policy::Shadow && outcome.is_ok_and(|outcome| !outcome.decision.is_allow())
        };
        charges.iter().zip(&self.outcomes).any(denies)
    }

    /// The places of the charges that were kept because the request passes, as far as it could be decided. Those that are
    /// kept in any case are not among them.
    fn kept_charges<K>(&self, charges: &[Charge<K>]) -> impl Iterator<Item = usize> {
        let is_kept = |(charge, outcome): (&Charge<K>, &Result<Outcome, StoreError>)| {
            charge.policy != Policy::Count && outcome.is_ok_and(|outcome| outcome.decision.is_allow())
        };
        let each = charges.iter().zip(&self.outcomes).map(is_kept).enumerate();
        each.filter(|(_, is_kept)| *is_kept).map(|(index, _)| index)
    }

    /// Tells of a charge that passed how its key stands now.
    fn update_standing(&mut self, index: usize, decision: Decision) {
        if let Some(Ok(outcome)) = self.outcomes.get_mut(index)
            && let Decision::Allow { standing, .. } = &mut outcome.decision
        {
            *standing = *decision.standing();
        }
    }
}

/// What settling one charge came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What the limit says, and how it stands after.
    pub decision: Decision,
    /// For taking the charge back.
    pub receipt: Receipt,
    /// Who decided.
    pub source: Source,
}

/// Why a store could not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no connection to it. Ours to survive, the operator's to mend.
    Unavailable,
    /// It did not answer in time. Whether it did what it was asked is not known.
    Timeout,
    /// The connection broke before it answered. Whether it did what it was asked is not known.
    ConnectionLost,
    /// It was reached too late to be of use, and did nothing.
    DeadlinePassed,
    /// Too much waits for it already, or too much was asked of it at once; it was not asked.
    Overloaded,
    /// It failed again and again and is left alone for now; it was not asked.
    BreakerOpen,
    /// The request was refused before this charge was asked for.
    Skipped,
    /// The key holds what no limit wrote. It was left alone.
    ForeignValue,
    /// It answered with something that is not an answer.
    InvalidReply,
    /// It refused, with this code.
    Server(RedisErrorCode),
}

/// The first word of a server's refusal, as far as it is one we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each says what the server said")]
pub enum RedisErrorCode {
    ReadOnly,
    Loading,
    MasterDown,
    ClusterDown,
    Moved,
    Ask,
    TryAgain,
    CrossSlot,
    NoScript,
    NoFunction,
    OutOfMemory,
    Misconf,
    NoReplicas,
    Busy,
    NoAuth,
    WrongPass,
    NoPerm,
    MaxClients,
    WrongType,
    /// Any other.
    Other,
}

impl RedisErrorCode {
    /// All of them, each at the place that it is as a number.
    pub const ALL: [Self; 20] = [
        Self::ReadOnly,
        Self::Loading,
        Self::MasterDown,
        Self::ClusterDown,
        Self::Moved,
        Self::Ask,
        Self::TryAgain,
        Self::CrossSlot,
        Self::NoScript,
        Self::NoFunction,
        Self::OutOfMemory,
        Self::Misconf,
        Self::NoReplicas,
        Self::Busy,
        Self::NoAuth,
        Self::WrongPass,
        Self::NoPerm,
        Self::MaxClients,
        Self::WrongType,
        Self::Other,
    ];

    /// What a refusal is by its words: the first of them, where that says it.
    pub fn from_error(code: &str, rest: &str) -> Self {
        match code {
            "READONLY" => Self::ReadOnly,
            "LOADING" => Self::Loading,
            "MASTERDOWN" => Self::MasterDown,
            "CLUSTERDOWN" => Self::ClusterDown,
            "MOVED" => Self::Moved,
            "ASK" => Self::Ask,
            "TRYAGAIN" => Self::TryAgain,
            "CROSSSLOT" => Self::CrossSlot,
            "NOSCRIPT" => Self::NoScript,
            "OOM" => Self::OutOfMemory,
            "MISCONF" => Self::Misconf,
            "NOREPLICAS" => Self::NoReplicas,
            "BUSY" => Self::Busy,
            "NOAUTH" => Self::NoAuth,
            "WRONGPASS" => Self::WrongPass,
            "NOPERM" => Self::NoPerm,
            "WRONGTYPE" => Self::WrongType,
            "ERR" if rest.starts_with("Function not found") => Self::NoFunction,
            "ERR" if rest.starts_with("max number of clients") => Self::MaxClients,
            "ERR" => Self::from_script_error(rest),
            _ => Self::Other,
        }
    }

    /// What failed inside a script: the oldest servers put the refusal behind words of their own, and none gives a code to
    /// what its user may not do.
    fn from_script_error(text: &str) -> Self {
        if text.contains("The user executing the script can't") || text.starts_with("ACL failure in script") {
            return Self::NoPerm;
        }
        match text.rsplit_once(": -") {
            Some((_, inner)) if text.starts_with("Error running script") => {
                let (code, _) = inner.split_once(' ').unwrap_or((inner, ""));
                Self::from_error(code, "")
            }
            _ => Self::Other,
        }
    }

    /// As metrics and logs name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "readonly",
            Self::Loading => "loading",
            Self::MasterDown => "masterdown",
            Self::ClusterDown => "clusterdown",
            Self::Moved => "moved",
            Self::Ask => "ask",
            Self::TryAgain => "tryagain",
            Self::CrossSlot => "crossslot",
            Self::NoScript => "noscript",
            Self::NoFunction => "nofunction",
            Self::OutOfMemory => "oom",
            Self::Misconf => "misconf",
            Self::NoReplicas => "noreplicas",
            Self::Busy => "busy",
            Self::NoAuth => "noauth",
            Self::WrongPass => "wrongpass",
            Self::NoPerm => "noperm",
            Self::MaxClients => "maxclients",
            Self::WrongType => "wrongtype",
            Self::Other => "other",
        }
    }
}

impl StoreError {
    /// Whether what was asked for was certainly not done.
    pub const fn is_definite(self) -> bool {
        !matches!(self, Self::Timeout | Self::ConnectionLost | Self::InvalidReply)
    }

    /// As metrics and logs name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::ConnectionLost => "lost",
            Self::DeadlinePassed => "late",
            Self::Overloaded => "overloaded",
            Self::BreakerOpen => "breaker_open",
            Self::Skipped => "unasked",
            Self::ForeignValue => "foreign",
            Self::InvalidReply => "nonsense",
            Self::Server(code) => code.name(),
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unavailable => "the store cannot be reached",
            Self::Timeout => "the store did not answer in time",
            Self::ConnectionLost => "the connection to the store broke before it answered",
            Self::DeadlinePassed => "the store was reached too late, and did nothing",
            Self::Overloaded => "too much waits for the store already",
            Self::BreakerOpen => "circuit breaker open; the store was not called",
            Self::Skipped => "skipped: the request was already denied",
            Self::ForeignValue => "the key holds what no limit wrote",
            Self::InvalidReply => "the store sent an invalid reply",
            Self::Server(code) => return write!(f, "the store refused: {}", code.name()),
        })
    }
}

impl std::error::Error for StoreError {}
