//! One call of the script: its arguments as bytes, and its answer as outcomes.
//!
//! Numbers are packed as MessagePack, which every server's Lua unpacks in one go. Limits are sent once for all charges
//! held against them, keys once for all charges of theirs.

use std::collections::HashMap;
use tollgate_core::{
    Charge, Cost, Decision, LeaseId, Limit, Mark, Micros, Policy, Receipt, Retry, Standing, State, Timestamp,
};

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Settles requests.
    Settle = 1,
    /// Settles them and keeps nothing.
    Peek = 2,
    /// Takes kept charges back.
    Undo = 3,
    /// Gives cost back.
    Refund = 4,
    /// Gives back what leases hold.
    Release = 5,
    /// Lets leases last anew.
    Renew = 6,
    /// Clears counters.
    Forget = 7,
}

/// When a call is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// The caller's time and how far it may be from the server's to be believed. Nothing: the server's time.
    pub caller: Option<(Timestamp, Micros)>,
    /// How late a clock may be without having been set back.
    pub slack: Micros,
    /// The last moment, in the server's time, at which the call may still begin.
    pub not_after: Option<Timestamp>,
}

/// A call as it is put together.
#[derive(Clone, Debug)]
pub struct Call {
    mode: Mode,
    keys: Vec<Vec<u8>>,
    places: HashMap<Vec<u8>, u64>,
    terms: Vec<(Limit, Policy)>,
    numbers: Numbers,
    leases: Vec<u8>,
    has_leases: bool,
    /// For each answer to come, its limit and the cost and lease of its receipt.
    asked: Vec<(Limit, Cost, LeaseId)>,
}

/// What a call came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The server's time.
    pub server_now: Timestamp,
    /// The time it was decided at.
    pub now: Timestamp,
    /// Nothing if the call began too late, and nothing was done. Else one for each charge or thing to do, in order.
    pub told: Option<Vec<Told>>,
}

/// What the script says of one charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The key holds what no limit wrote: it was left alone, and its request settled without it.
    Foreign,
    /// What came of it.
    Charge {
        /// What the limit says.
        decision: Decision,
        /// For taking the charge back.
        receipt: Receipt,
        /// Whether the charge was kept; when giving back, whether there was anything to.
        kept: bool,
        /// Whether its request passes.
        passes: bool,
        /// What the key then holds, where that is short.
        state: Option<State>,
    },
    /// Whether there was a counter to clear.
    Forgotten(bool),
}

/// Numbers as MessagePack.
#[derive(Clone, Debug, Default)]
struct Numbers {
    bytes: Vec<u8>,
    count: u32,
}

impl Call {
    /// An empty call.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            keys: Vec::new(),
            places: HashMap::new(),
            terms: Vec::new(),
            numbers: Numbers::default(),
            leases: Vec::new(),
            has_leases: false,
            asked: Vec::new(),
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

    /// Adds something to give back: undo, refund, release, renew. They heed of the receipt what they need.
    pub fn give_back(&mut self, key: &[u8], limit: &Limit, receipt: &Receipt) {
        self.charge(key, limit, Policy::Enforce, receipt.cost, receipt.lease);
        let Mark { at, frac, taken_at } = receipt.mark;
        for number in [at.as_micros(), frac, taken_at.as_micros()] {
            self.numbers.push(number);
        }
        self.leases.extend(receipt.lease.0.to_le_bytes());
    }

    /// Adds a counter to clear.
    pub fn forget(&mut self, key: &[u8]) {
        self.place(key);
    }

    /// How many charges or things to do there are.
    pub fn size(&self) -> usize {
        self.asked.len()
    }

    /// The keys, in the order of the script's.
    pub fn keys(&self) -> &[Vec<u8>] {
        &self.keys
    }

    /// The two arguments.
    pub fn arguments(&self, clock: Clock) -> [Vec<u8>; 2] {
        let mut head = Numbers::default();
        let (caller, tolerance) = clock.caller.unwrap_or_default();
        for number in [
            self.mode as u64,
            caller.as_micros(),
            tolerance.get(),
            clock.slack.get(),
            clock.not_after.unwrap_or_default().as_micros(),
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
            for number in limit.numbers() {
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

    /// Reads the answer to this call. Nothing if it is not one.
    pub fn read(&self, answer: &[u8]) -> Option<Answer> {
        let mut rest = answer;
        let server_now = moment(&mut rest)?;
        let now = moment(&mut rest)?;
        if pull(&mut rest, 1)? == 1 {
            return rest.is_empty().then_some(Answer {
                server_now,
                now,
                told: None,
            });
        }
        let mut told = Vec::with_capacity(self.asked.len().max(self.keys.len()));
        if self.mode == Mode::Forget {
            for _ in &self.keys {
                told.push(Told::Forgotten(pull(&mut rest, 1)? == 1));
            }
        }
        for (limit, cost, lease) in &self.asked {
            told.push(read_charge(&mut rest, limit, *cost, *lease)?);
        }
        rest.is_empty().then_some(Answer {
            server_now,
            now,
            told: Some(told),
        })
    }

    fn charge(&mut self, key: &[u8], limit: &Limit, policy: Policy, cost: Cost, lease: LeaseId) {
        let key = self.place(key);
        let term = (*limit, policy);
        let known = self.terms.iter().position(|known| *known == term);
        let place = known.unwrap_or_else(|| {
            self.terms.push(term);
            self.terms.len() - 1
        });
        for number in [key, place as u64 + 1, cost.get()] {
            self.numbers.push(number);
        }
        self.has_leases |= matches!(limit, Limit::Concurrency(_));
        self.asked.push((*limit, cost, lease));
    }

    /// The place of a key among the script's, from one.
    fn place(&mut self, key: &[u8]) -> u64 {
        if let Some(&place) = self.places.get(key) {
            return place;
        }
        self.keys.push(key.to_vec());
        let place = self.keys.len() as u64;
        self.places.insert(key.to_vec(), place);
        place
    }
}

/// The mark of an array with a length of four bytes.
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
}

/// Flags of an answer, as `settle.lua` adds them up.
const PASSES: u64 = 1;
const KEPT: u64 = 2;
const REQUEST_PASSES: u64 = 4;
const HELD: u64 = 8;
const FOREIGN: u64 = 16;

fn read_charge(rest: &mut &[u8], limit: &Limit, cost: Cost, lease: LeaseId) -> Option<Told> {
    let flags = pull(rest, 1)?;
    let standing = Standing {
        limit: limit.capacity(),
        remaining: pull(rest, 4)?,
        reset_after: Micros::new(pull(rest, 7)?),
    };
    let wait = pull(rest, 7)?;
    let mark = Mark {
        at: moment(rest)?,
        frac: pull(rest, 4)?,
        taken_at: moment(rest)?,
    };
    let state = if flags & HELD == 0 {
        None
    } else {
        let (state, behind) = rest.split_at_checked(limit.packed_bytes()?)?;
        *rest = behind;
        limit.read_packed(state)
    };
    if flags & FOREIGN != 0 {
        return Some(Told::Foreign);
    }
    let decision = if flags & PASSES == 0 {
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
    Some(Told::Charge {
        decision,
        receipt: Receipt { cost, mark, lease },
        kept: flags & KEPT != 0,
        passes: flags & REQUEST_PASSES != 0,
        state,
    })
}

/// −1 and −2 in seven bytes.
const UNKNOWN: u64 = (1 << 56) - 1;
const NEVER: u64 = (1 << 56) - 2;

fn moment(bytes: &mut &[u8]) -> Option<Timestamp> {
    pull(bytes, 7).map(Timestamp::from_micros)
}

/// Takes a number off the front, its least byte first. Nothing if there are too few bytes.
fn pull(bytes: &mut &[u8], width: usize) -> Option<u64> {
    let (number, rest) = bytes.split_at_checked(width)?;
    *bytes = rest;
    Some(number.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
}
