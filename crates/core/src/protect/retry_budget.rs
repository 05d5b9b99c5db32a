//! The retry budget: retries are a tenth of the requests, so that a failing service is not sent a multiple of its load.

/// A count of tokens that requests deposit and retries withdraw. One budget for all a client sends bounds all its
/// attempts: `requests × (1 + 1/10) + 100`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudget {
    balance: u32,
    capacity: u32,
}

impl RetryBudget {
    /// A full budget that holds `retries` retries: as many as may follow each other before requests have paid for them.
    pub const fn new(retries: u32) -> Self {
        let capacity = retries.saturating_mul(RETRY_COST);
        Self {
            balance: capacity,
            capacity,
        }
    }

    /// Deposits the token of a request. The first attempt of a request does, its retries do not.
    pub fn deposit(&mut self) {
        self.balance = self.balance.saturating_add(1).min(self.capacity);
    }

    /// Withdraws the tokens of a retry. False, and nothing is withdrawn, if there are too few.
    pub fn withdraw(&mut self) -> bool {
        let left = self.balance.checked_sub(RETRY_COST);
        self.balance = left.unwrap_or(self.balance);
        left.is_some()
    }

    /// The tokens in it.
    pub const fn balance(&self) -> u32 {
        self.balance
    }
}

impl Default for RetryBudget {
    /// A full budget of 100 retries.
    fn default() -> Self {
        Self::new(100)
    }
}

/// The tokens of a retry; a request deposits one.
const RETRY_COST: u32 = 10;
