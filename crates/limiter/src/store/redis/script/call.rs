//! One call of the script: its arguments as bytes, and its reply as outcomes.
//!
//! Numbers are packed as MessagePack, which every server's Lua unpacks in one step. A limit is sent once for all its
//! charges, a key once for all charges on it.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::LazyLock;
use tollgate_core::{
    Charge, Cost, Decision, LeaseId, Limit, Mark, Micros, Policy, Receipt, Retry, Standing, State, Timestamp,
};

/// The operation of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScriptOp {
    /// Settles requests.
    Settle = 1,
    /// Settles them and keeps nothing.
    Peek = 2,
    /// Reverses kept charges.
    Undo = 3,
    /// Returns cost.
    Refund = 4,
    /// Releases leases.
    Release = 5,
    /// Renews leases.
    Renew = 6,
    /// Clears counters.
    Forget = 7,
}

/// The time a call is decided at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTiming {
    /// The caller's time, and its largest accepted difference from the server's. `None`: the server's time.
    pub caller: Option<(Timestamp, Micros)>,
    /// The largest step back of a clock that does not count as set back.
    pub slack: Micros,
    /// The latest server time at which the call may start.
    pub not_after: Option<Timestamp>,
    /// About the time it is decided at: boundaries of calendars are chosen around it.
    pub around: Timestamp,
}

/// A call being built.
#[derive(Clone, Debug)]
pub struct Call {
    op: ScriptOp,
    keys: Vec<Vec<u8>>,
    key_indexes: HashMap<Vec<u8>, u64, BuildHasherDefault<KeyHasher>>,
    terms: Vec<(Limit, Policy)>,
    numbers: Numbers,
    leases: Vec<u8>,
    has_leases: bool,
    /// For each expected reply the index of its limit in `terms`, and the cost and lease of its receipt.
    expected: Vec<(usize, Cost, LeaseId)>,
}

/// Hashes a key by its last bytes, which are themselves a hash. Callers can choose subjects whose keys are alike where the
/// key space has no secret, so the hash has one of its own.
#[derive(Clone, Debug, Default)]
struct KeyHasher(u64);

/// Random numbers of this process, for [`KeyHasher`].
static HASH_SECRETS: LazyLock<[u64; 2]> = LazyLock::new(|| [0, 1].map(|index| RandomState::new().hash_one(index)));

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        let tail = u128::from_le_bytes(bytes.last_chunk().copied().unwrap_or_default());
        let [low, high] = *HASH_SECRETS;
        let product = u128::from(tail as u64 ^ low) * u128::from((tail >> 64) as u64 ^ high);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    /// The length of a key, which all keys of a store share.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The reply to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptReply {
    /// The server's time.
    pub server_now: Timestamp,
    /// The time it was decided at.
    pub now: Timestamp,
    /// One for each charge or operation, in order. `None` if the deadline had passed, and nothing was done.
    pub replies: Option<Vec<ChargeReply>>,
}

/// The reply to one charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChargeReply {
    /// The key holds bytes that no limit wrote: it was not changed, and its request was settled without it.
    ForeignValue,
    /// The limit was evaluated.
    Charge {
        /// Its decision.
        decision: Decision,
        /// The receipt, for undoing the charge.
        receipt: Receipt,
        /// True if the charge was kept; for other operations, if there was anything to return.
        kept: bool,
        /// True if its request is allowed.
        allowed: bool,
        /// The state of the key after it, if that is short.
        state: Option<State>,
    },
    /// True if there was a counter to clear.
    Cleared(bool),
}

/// Numbers as MessagePack.
#[derive(Clone, Debug, Default)]
struct Numbers {
    bytes: Vec<u8>,
    count: u32,
}

impl Call {
    /// An empty call.
    pub fn new(op: ScriptOp) -> Self {
        Self {
            op,
            keys: Vec::new(),
            key_indexes: HashMap::default(),
            terms: Vec::new(),
            numbers: Numbers::default(),
            leases: Vec::new(),
            has_leases: false,
            expected: Vec::new(),
        }
    }

    /// Adds a request: settle and peek.
    pub fn request<K: AsRef<[u8]>>(&mut self, charges: &[Charge<K>], lease: LeaseId) {
        self.numbers.push(charges.len() as u64);
        for Charge {
            key,
            limit,
            cost,
            policy,
            ..
        } in charges
        {
            self.charge(key.as_ref(), limit, *policy, *cost, lease);
        }
        self.leases.extend(lease.0.to_le_bytes());
    }

    /// Adds an undo, refund, release or renewal. Each uses the parts of the receipt that it needs.
    pub fn modify(&mut self, key: &[u8], limit: &Limit, receipt: &Receipt) {
        self.charge(key, limit, Policy::Enforce, receipt.cost, receipt.lease);
        let Mark { at, frac, taken_at } = receipt.mark;
        for number in [at.as_micros(), frac, taken_at.as_micros()] {
            self.numbers.push(number);
        }
        self.leases.extend(receipt.lease.0.to_le_bytes());
    }

    /// Adds a counter to clear.
    pub fn forget(&mut self, key: &[u8]) {
        self.key_index(key);
    }

    /// The number of charges or operations.
    pub fn size(&self) -> usize {
        self.expected.len()
    }

    /// The keys, in the order of the script's.
    pub fn keys(&self) -> &[Vec<u8>] {
        &self.keys
    }

    /// The two arguments.
    pub fn arguments(&self, timing: CallTiming) -> [Vec<u8>; 2] {
        let mut head = Numbers::default();
        let (caller, tolerance) = timing.caller.unwrap_or_default();
        for number in [
            self.op as u64,
            caller.as_micros(),
            tolerance.get(),
            timing.slack.get(),
            timing.not_after.unwrap_or_default().as_micros(),
            self.terms.len() as u64,
        ] {
            head.push(number);
        }
        for (limit, policy) in &self.terms {
            head.push(match policy {
                Policy::Enforce => 1,
                Policy::Shadow => 2,
                Policy::Count => 3,
            });
            head.push(limit.number().into());
            for number in limit.numbers(timing.around) {
                head.push(number);
            }
        }
        let mut bytes = vec![ARRAY];
        bytes.extend((head.count + self.numbers.count).to_be_bytes());
        bytes.extend(head.bytes);
        bytes.extend(&self.numbers.bytes);
        [
            bytes,
            if self.has_leases {
                self.leases.clone()
            } else {
                Vec::new()
            },
        ]
    }

    /// Reads the reply to this call. `None` if it is invalid.
    pub fn read(&self, reply: &[u8]) -> Option<ScriptReply> {
        let mut rest = reply;
        let server_now = read_time(&mut rest)?;
        let now = read_time(&mut rest)?;
        if read_uint(&mut rest, 1)? == 1 {
            return rest.is_empty().then_some(ScriptReply {
                server_now,
                now,
                replies: None,
            });
        }
        let mut replies = Vec::with_capacity(self.expected.len().max(self.keys.len()));
        if self.op == ScriptOp::Forget {
            for _ in &self.keys {
                replies.push(ChargeReply::Cleared(read_uint(&mut rest, 1)? == 1));
            }
        }
        for (term, cost, lease) in &self.expected {
            let (limit, _) = self.terms.get(*term)?;
            replies.push(read_charge(&mut rest, self.op, limit, *cost, *lease)?);
        }
        rest.is_empty().then_some(ScriptReply {
            server_now,
            now,
            replies: Some(replies),
        })
    }

    fn charge(&mut self, key: &[u8], limit: &Limit, policy: Policy, cost: Cost, lease: LeaseId) {
        let key = self.key_index(key);
        let term = (*limit, policy);
        let known = self.terms.iter().position(|known| *known == term);
        let term_index = known.unwrap_or_else(|| {
            self.terms.push(term);
            self.terms.len() - 1
        });
        self.numbers.push(key);
        self.numbers.push(term_index as u64 + 1);
        match limit {
            // Doubles do not hold it.
            Limit::Cell(_) if cost.get() >= 1 << f64::MANTISSA_DIGITS => self.numbers.push_bytes(cost.get()),
            _ => self.numbers.push(cost.get()),
        }
        self.has_leases |= matches!(limit, Limit::Concurrency(_));
        self.expected.push((term_index, cost, lease));
    }

    /// The index of a key among the script's, from one.
    fn key_index(&mut self, key: &[u8]) -> u64 {
        if let Some(&index) = self.key_indexes.get(key) {
            return index;
        }
        self.keys.push(key.to_vec());
        let index = self.keys.len() as u64;
        self.key_indexes.insert(key.to_vec(), index);
        index
    }
}

/// The marker of an array with a length of four bytes.
const ARRAY: u8 = 0xdd;

impl Numbers {
    fn push(&mut self, number: u64) {
        self.count += 1;
        let [.., b3, b2, b1, b0] = number.to_be_bytes();
        match number {
            0..0x80 => self.bytes.push(b0),
            0x80..0x100 => self.bytes.extend([0xcc, b0]),
            0x100..0x1_0000 => self.bytes.extend([0xcd, b1, b0]),
            0x1_0000..0x1_0000_0000 => self.bytes.extend([0xce, b3, b2, b1, b0]),
            _ => {
                self.bytes.push(0xcf);
                self.bytes.extend(number.to_be_bytes());
            }
        }
    }

    /// The same as a string of its 8 bytes, least significant first.
    fn push_bytes(&mut self, number: u64) {
        self.count += 1;
        self.bytes.push(0xa8);
        self.bytes.extend(number.to_le_bytes());
    }
}

/// Flags of a reply, as `settle.lua` adds them up.
const ALLOWED: u64 = 1;
const KEPT: u64 = 2;
const REQUEST_ALLOWED: u64 = 4;
const HAS_STATE: u64 = 8;
const FOREIGN: u64 = 16;
const LARGE: u64 = 32;

/// The remaining units in a reply if they are to be computed from the state.
const COMPUTED: u64 = 1 << 53;

fn read_charge(rest: &mut &[u8], op: ScriptOp, limit: &Limit, cost: Cost, lease: LeaseId) -> Option<ChargeReply> {
    let flags = read_uint(rest, 1)?;
    let width = if flags & LARGE == 0 { 4 } else { 7 };
    let standing = Standing {
        limit: limit.capacity(),
        remaining: read_uint(rest, width)?,
        reset_after: Micros::new(read_uint(rest, 7)?),
    };
    let wait = read_uint(rest, 7)?;
    let mark = Mark {
        at: read_time(rest)?,
        frac: read_uint(rest, width)?,
        taken_at: read_time(rest)?,
    };
    let state_bytes = if flags & LARGE == 0 {
        limit.packed_bytes()
    } else {
        usize::try_from(read_uint(rest, 1)?).ok()
    };
    let state = if flags & HAS_STATE == 0 {
        None
    } else {
        let (state, behind) = rest.split_at_checked(state_bytes?)?;
        *rest = behind;
        limit.read_packed(state)
    };
    if flags & FOREIGN != 0 {
        return Some(ChargeReply::ForeignValue);
    }
    let decision = if flags & ALLOWED == 0 {
        let retry = match wait {
            UNKNOWN => Retry::Unknown,
            NEVER => Retry::Never,
            wait => Retry::After(Micros::new(wait)),
        };
        Decision::Deny { standing, retry }
    } else {
        let delay = Micros::new(wait);
        Decision::Allow { standing, delay }
    };
    let (decision, mark) = match (limit, &state) {
        (Limit::Cell(cell), None | Some(State::Cell(_))) if standing.remaining == COMPUTED => {
            let state = match &state {
                Some(State::Cell(state)) => Some(state),
                _ => None,
            };
            let is_after = op == ScriptOp::Settle && flags & KEPT != 0;
            let cost = if op <= ScriptOp::Peek { cost } else { Cost::ZERO };
            cell.read_decision(state, cost, mark.taken_at, decision.is_allow(), is_after)
        }
        _ => (decision, mark),
    };
    Some(ChargeReply::Charge {
        decision,
        receipt: Receipt { cost, mark, lease },
        kept: flags & KEPT != 0,
        allowed: flags & REQUEST_ALLOWED != 0,
        state,
    })
}

/// −1 and −2 in seven bytes.
const UNKNOWN: u64 = (1 << 56) - 1;
const NEVER: u64 = (1 << 56) - 2;

fn read_time(bytes: &mut &[u8]) -> Option<Timestamp> {
    read_uint(bytes, 7).map(Timestamp::from_micros)
}

/// Takes a number off the front, least significant byte first. `None` if there are too few bytes.
fn read_uint(bytes: &mut &[u8], width: usize) -> Option<u64> {
    let (number, rest) = bytes.split_at_checked(width)?;
    *bytes = rest;
    Some(number.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
}
