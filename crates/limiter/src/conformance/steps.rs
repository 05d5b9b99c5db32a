//! What one caller after the other must see of a store, for one algorithm.

use super::samples::{LONG, SHORT, Shape, UNITS};
use super::twin::{Twin, charge, charge_as};
use crate::store::Store;
use tollgate_core::{Cost, LeaseId, Limit, Micros, Policy, Retry};

/// Plays all steps, each on counters of its own.
pub(super) async fn all<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    macro_rules! play {
        ($($step:ident: $name:literal),* $(,)?) => {
            $(twin.begin($name); $step(twin).await?;)*
        };
    }
    play!(
        countdown: "a limit is counted down to nothing",
        refusal: "a refusal changes nothing",
        peek: "a peek takes nothing",
        no_cost: "a cost of zero looks",
        too_much: "a cost above the limit never passes",
        all_or_none: "several keys are charged together or not at all",
        twice: "charges of one key in one request add up",
        shadow: "a shadow limit never refuses",
        count: "a counting limit is charged when refused",
        undo: "undo takes one charge back",
        refund: "a refund never goes above full",
        forget: "a forgotten key is new",
        apart: "counters of other identities are apart",
        changed: "a limit changes under a live key",
        leases: "a lease is released, renewed, and runs out",
        refill: "what was used comes back when promised",
        idle: "an idle key is as good as new",
        walk: "a random walk",
    );
    Ok(())
}

async fn countdown<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let limit = twin.shape().limit(UNITS, LONG)?;
    let key = twin.key("one", &limit);
    for n in 1..=UNITS {
        let taken = twin.take(key, &limit, 1).await?;
        twin.same("whether it passes", true, taken.decision.is_allow())?;
        twin.same("units left", UNITS - n, taken.decision.standing().remaining)?;
    }
    for _ in 0..3 {
        let taken = twin.take(key, &limit, 1).await?;
        twin.same("whether one more passes", false, taken.decision.is_allow())?;
    }
    let large = twin.key("large costs", &limit);
    twin.take(large, &limit, UNITS - 2).await?;
    let taken = twin.take(large, &limit, 3).await?;
    twin.same("whether more than is left passes", false, taken.decision.is_allow())?;
    let taken = twin.take(large, &limit, 2).await?;
    twin.same("whether what is left passes", true, taken.decision.is_allow())
}

async fn refusal<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let limit = twin.shape().limit(UNITS, LONG)?;
    let key = twin.key("one", &limit);
    twin.take(key, &limit, UNITS - 1).await?;
    for _ in 0..5 {
        twin.take(key, &limit, 2).await?;
        twin.left(key, &limit, 1).await?;
    }
    twin.take(key, &limit, 1).await?;
    twin.left(key, &limit, 0).await
}

async fn peek<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let limit = twin.shape().limit(UNITS, LONG)?;
    let (key, other) = (twin.key("one", &limit), twin.key("other", &limit));
    for _ in 0..3 {
        twin.peek(&[charge(key, &limit, UNITS)?, charge(other, &limit, 1)?])
            .await?;
    }
    twin.left(key, &limit, UNITS).await?;
    twin.take(key, &limit, 3).await?;
    twin.peek(&[charge(key, &limit, UNITS)?]).await?;
    twin.peek(&[charge_as(key, &limit, UNITS, Policy::Count)?]).await?;
    twin.left(key, &limit, UNITS - 3).await
}

async fn no_cost<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let limit = twin.shape().limit(UNITS, LONG)?;
    let key = twin.key("one", &limit);
    for left in [UNITS, 0] {
        for _ in 0..2 {
            let taken = twin.take(key, &limit, 0).await?;
            twin.same("whether nothing passes", true, taken.decision.is_allow())?;
            twin.left(key, &limit, left).await?;
        }
        twin.take(key, &limit, left).await?;
    }
    let empty = twin.settle(&[]).await?;
    twin.same("whether no charge at all passes", true, empty.passes)
}

async fn too_much<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let limit = twin.shape().limit(UNITS, LONG)?;
    let key = twin.key("one", &limit);
    for cost in [UNITS + 1, Cost::MAX.get()] {
        let taken = twin.take(key, &limit, cost).await?;
        twin.same("when it would pass", Some(Retry::Never), taken.decision.retry())?;
    }
    twin.left(key, &limit, UNITS).await
}

async fn all_or_none<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let limit = twin.shape().limit(UNITS, LONG)?;
    let bucket = Shape::TokenBucket.limit(UNITS, LONG)?;
    let full = twin.key("full", &bucket);
    twin.take(full, &bucket, UNITS).await?;
    for (name, other) in [("same", limit), ("raised", twin.shape().limit(UNITS + 2, LONG)?)] {
        // A queue that others can see between take and undo keeps its promise: see `Bench::compensated`.
        if twin.bench().is_compensated() && !twin.shape().takes_back() {
            continue;
        }
        let (one, two) = (twin.key(name, &limit), twin.key(&format!("{name} two"), &other));
        let units = limit_of(&other, twin).await?;
        for order in [[(one, limit), (full, bucket)], [(full, bucket), (two, other)]] {
            let [(first, a), (second, b)] = order;
            let settled = twin.settle(&[charge(first, &a, 1)?, charge(second, &b, 1)?]).await?;
            twin.same("whether it passes", false, settled.passes)?;
        }
        twin.left(one, &limit, UNITS).await?;
        twin.left(two, &other, units).await?;
        let all = [charge(one, &limit, 2)?, charge(two, &other, 3)?];
        let settled = twin.settle(&all).await?;
        twin.same("whether it passes where there is room", true, settled.passes)?;
        twin.left(one, &limit, UNITS - 2).await?;
        twin.left(two, &other, units - 3).await?;
    }
    twin.left(full, &bucket, 0).await
}

/// The most units a limit holds.
async fn limit_of<S: Store>(limit: &Limit, twin: &mut Twin<'_, S>) -> Result<u64, String> {
    let key = twin.key("nobody", limit);
    Ok(twin.look(key, limit).await?.decision.standing().limit)
}

async fn twice<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let limit = twin.shape().limit(UNITS, LONG)?;
    let (key, other) = (twin.key("one", &limit), twin.key("other", &limit));
    let too_much = [charge(key, &limit, 4)?, charge(key, &limit, 4)?];
    let settled = twin.settle(&too_much).await?;
    twin.same("whether the sum passes", false, settled.passes)?;
    twin.left(key, &limit, UNITS).await?;
    let mixed = [
        charge(key, &limit, 2)?,
        charge(other, &limit, 1)?,
        charge(key, &limit, 3)?,
    ];
    let settled = twin.settle(&mixed).await?;
    twin.same("whether it passes", true, settled.passes)?;
    twin.left(key, &limit, UNITS - 5).await?;
    twin.left(other, &limit, UNITS - 1).await
}

async fn shadow<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let limit = twin.shape().limit(UNITS, LONG)?;
    let (shadow, real) = (twin.key("shadow", &limit), twin.key("real", &limit));
    let both = [
        charge_as(shadow, &limit, 4, Policy::Shadow)?,
        charge_as(real, &limit, 1, Policy::Enforce)?,
    ];
    for left in [UNITS - 4, UNITS - 4] {
        let settled = twin.settle(&both).await?;
        twin.same("whether it passes", true, settled.passes)?;
        twin.left(shadow, &limit, left).await?;
    }
    twin.left(real, &limit, UNITS - 2).await?;
    if twin.bench().is_compensated() && !twin.shape().takes_back() {
        return Ok(());
    }
    twin.take(real, &limit, UNITS - 2).await?;
    let small = [
        charge_as(shadow, &limit, 1, Policy::Shadow)?,
        charge_as(real, &limit, 1, Policy::Enforce)?,
    ];
    let settled = twin.settle(&small).await?;
    twin.same("whether a real refusal refuses", false, settled.passes)?;
    twin.left(shadow, &limit, UNITS - 4).await
}

async fn count<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let limit = twin.shape().limit(UNITS, LONG)?;
    let (counting, full) = (twin.key("counting", &limit), twin.key("full", &limit));
    twin.take(full, &limit, UNITS).await?;
    let both = [
        charge_as(full, &limit, 1, Policy::Enforce)?,
        charge_as(counting, &limit, 2, Policy::Count)?,
    ];
    let settled = twin.settle(&both).await?;
    twin.same("whether it passes", false, settled.passes)?;
    twin.left(counting, &limit, UNITS - 2).await?;
    let more = [charge_as(counting, &limit, UNITS - 1, Policy::Count)?];
    let settled = twin.settle(&more).await?;
    twin.same("whether more than is left passes", false, settled.passes)?;
    // The core says what is taken of a counter that refuses: all of it, except where nobody could give it back.
    twin.look(counting, &limit).await?;
    Ok(())
}

async fn undo<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let limit = twin.shape().limit(UNITS, LONG)?;
    let key = twin.key("one", &limit);
    let first = twin.take(key, &limit, 3).await?;
    let second = twin.take(key, &limit, 2).await?;
    let back = |units: u64| if twin_takes_back(&limit) { units } else { 0 };
    twin.undo(key, &limit, &first.receipt).await?;
    twin.left(key, &limit, UNITS - 5 + back(3)).await?;
    if twin.is_still() {
        // Behind another give-back a charge counts as worked off since it was taken: exact only while no time passes.
        twin.take(key, &limit, 1).await?;
        twin.undo(key, &limit, &second.receipt).await?;
        twin.left(key, &limit, UNITS - 6 + back(5)).await?;
    }
    let last = twin.key("the last one", &limit);
    twin.take(last, &limit, 3).await?;
    let second = twin.take(last, &limit, 2).await?;
    twin.undo(last, &limit, &second.receipt).await?;
    twin.left(last, &limit, UNITS - 5 + back(2)).await?;
    let unseen = twin.key("unseen", &limit);
    twin.undo(unseen, &limit, &first.receipt).await?;
    twin.left(unseen, &limit, UNITS).await
}

fn twin_takes_back(limit: &Limit) -> bool {
    !matches!(limit, Limit::LeakyBucket(limit) if limit.is_shaping())
}

async fn refund<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let limit = twin.shape().limit(UNITS, LONG)?;
    let key = twin.key("one", &limit);
    twin.refund(key, &limit, Cost::MAX).await?;
    twin.left(key, &limit, UNITS).await?;
    twin.take(key, &limit, 5).await?;
    let back = |units: u64| if twin_takes_back(&limit) { units } else { 0 };
    let decision = twin.refund(key, &limit, Cost::ONE).await?;
    twin.same("units left", UNITS - 5 + back(1), decision.standing().remaining)?;
    twin.refund(key, &limit, Cost::MAX).await?;
    twin.left(key, &limit, UNITS - 5 + back(5)).await
}

async fn forget<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let limit = twin.shape().limit(UNITS, LONG)?;
    let (key, other) = (twin.key("one", &limit), twin.key("other", &limit));
    let forgotten = twin.forget(key, &limit).await?;
    twin.same("whether an unseen key was there", false, forgotten)?;
    twin.take(key, &limit, UNITS).await?;
    twin.take(other, &limit, UNITS).await?;
    let forgotten = twin.forget(key, &limit).await?;
    twin.same("whether it was there", true, forgotten)?;
    twin.left(key, &limit, UNITS).await?;
    let forgotten = twin.forget(key, &limit).await?;
    twin.same("whether it was still there", false, forgotten)?;
    twin.left(other, &limit, 0).await
}

async fn apart<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let limit = twin.shape().limit(UNITS, LONG)?;
    let raised = twin.shape().limit(UNITS * 2, LONG)?;
    let subject: &[&[u8]] = &[b"subject"];
    let key = twin.key_of("one", "", &limit, subject);
    let again = twin.key_of("one", "", &raised, subject);
    twin.same("the key of the same counter", key, again)?;
    let mut keys = vec![
        (key, limit),
        (twin.key_of("two", "", &limit, subject), limit),
        (twin.key_of("one", "b", &limit, subject), limit),
        (twin.key_of("one", "", &limit, &[b"subjecu"]), limit),
        (twin.key_of("one", "", &limit, &[b"subject\0"]), limit),
        (twin.key_of("one", "", &limit, &[b""]), limit),
        (twin.key_of("pair", "", &limit, &[b"a", b"bc"]), limit),
        (twin.key_of("pair", "", &limit, &[b"a", b"bd"]), limit),
        (twin.key_of("pair", "", &limit, &[b"b", b"bc"]), limit),
        (twin.key_of("pair", "", &limit, &[b"ab", b"c"]), limit),
        (twin.key_of("pair", "", &limit, &[b"abc", b""]), limit),
        (twin.key_of("pair", "", &limit, &[b"", b"abc"]), limit),
    ];
    if limit.window().is_some() {
        let longer = twin.shape().limit(UNITS, Micros::new(LONG.get() * 2))?;
        keys.push((twin.key_of("one", "", &longer, subject), longer));
    }
    for shape in Shape::ALL {
        // A queue is a form of the leaky bucket, and meets its counter.
        let other = shape.limit(UNITS, LONG)?;
        if shape != Shape::Queue && other.algorithm() != limit.algorithm() {
            keys.push((twin.key_of("one", "", &other, subject), other));
        }
    }
    for (index, &(key, limit)) in keys.iter().enumerate() {
        twin.left(key, &limit, UNITS).await?;
        twin.take(key, &limit, UNITS).await?;
        for &(later, limit) in keys.iter().skip(index + 1) {
            twin.left(later, &limit, UNITS).await?;
        }
    }
    Ok(())
}

async fn changed<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let limit = twin.shape().limit(UNITS, LONG)?;
    let raised = twin.shape().limit(UNITS * 3, LONG)?;
    let lowered = twin.shape().limit(2, LONG)?;
    let key = twin.key("one", &limit);
    twin.take(key, &limit, UNITS).await?;
    twin.take(key, &limit, 1).await?;
    // How much that is in the new numbers is the core's to say; the store must hand it the same state.
    twin.look(key, &raised).await?;
    twin.take(key, &raised, 2).await?;
    twin.look(key, &lowered).await?;
    twin.take(key, &lowered, 1).await?;
    twin.look(key, &limit).await?;
    for _ in 0..UNITS * 3 {
        twin.take(key, &raised, 1).await?;
    }
    Ok(())
}

async fn leases<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let ttl = if twin.is_still() { LONG } else { SHORT };
    let limit = twin.shape().limit(2, ttl)?;
    let key = twin.key("one", &limit);
    if !matches!(limit, Limit::Concurrency(_)) {
        let lease = twin.lease();
        twin.settle_under(&[charge(key, &limit, 1)?], lease).await?;
        twin.release(key, &limit, lease).await?;
        twin.renew(key, &limit, lease).await?;
        return Ok(());
    }
    // Long leases first: what happens to them does not depend on how long that takes.
    let long = twin.shape().limit(3, LONG)?;
    let held = twin.key("long", &long);
    let (first, second, unknown) = (twin.lease(), twin.lease(), twin.lease());
    twin.settle_under(&[charge(held, &long, 2)?], first).await?;
    twin.settle_under(&[charge(held, &long, 1)?], second).await?;
    renew(twin, "renewing what is held", (held, &long, first), true).await?;
    release(twin, "releasing what nobody holds", (held, &long, unknown), false).await?;
    release(twin, "releasing", (held, &long, first), true).await?;
    release(twin, "releasing again", (held, &long, first), false).await?;
    renew(twin, "renewing what was released", (held, &long, first), false).await?;
    twin.left(held, &long, 2).await?;
    release(twin, "releasing the other", (held, &long, second), true).await?;
    twin.left(held, &long, 3).await?;
    // Short ones run out.
    let lost = twin.lease();
    twin.settle_under(&[charge(key, &limit, 2)?], lost).await?;
    twin.pass(key, &limit, ttl).await?;
    renew(twin, "renewing what ran out", (key, &limit, lost), false).await?;
    release(twin, "releasing what ran out", (key, &limit, lost), false).await?;
    twin.left(key, &limit, 2).await?;
    if twin.is_still() {
        let kept = twin.lease();
        twin.settle_under(&[charge(key, &limit, 2)?], kept).await?;
        for _ in 0..3 {
            twin.pass(key, &limit, Micros::new(ttl.get() - 1)).await?;
            renew(twin, "renewing in time", (key, &limit, kept), true).await?;
            twin.left(key, &limit, 0).await?;
        }
        twin.pass(key, &limit, ttl).await?;
        twin.left(key, &limit, 2).await?;
    }
    Ok(())
}

/// Releases a lease, and complains unless it was held or not as `expected`.
async fn release<S: Store>(
    twin: &mut Twin<'_, S>,
    what: &str,
    (key, limit, lease): (S::Key, &Limit, LeaseId),
    expected: bool,
) -> Result<(), String> {
    let released = twin.release(key, limit, lease).await?;
    twin.same(what, expected, released)
}

/// Renews a lease, and complains unless it was held or not as `expected`.
async fn renew<S: Store>(
    twin: &mut Twin<'_, S>,
    what: &str,
    (key, limit, lease): (S::Key, &Limit, LeaseId),
    expected: bool,
) -> Result<(), String> {
    let renewed = twin.renew(key, limit, lease).await?;
    twin.same(what, expected, renewed)
}

/// The most requests it may take to exhaust a small limit that refills meanwhile.
const MOST_TAKES: usize = 1_000;

async fn refill<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let period = if twin.is_still() { LONG } else { SHORT };
    let limit = twin.shape().limit(3, period)?;
    let key = twin.key("one", &limit);
    for _ in 0..3 {
        let mut refused = None;
        for _ in 0..MOST_TAKES {
            let taken = twin.take(key, &limit, 1).await?;
            if let Some(retry) = taken.decision.retry() {
                refused = Some(retry);
                break;
            }
        }
        let wait = match refused {
            Some(Retry::After(wait)) => wait,
            Some(Retry::Unknown) if matches!(limit, Limit::Concurrency(_)) => period,
            // A store too slow for the period never sees it exhausted.
            None if !twin.is_still() => return Ok(()),
            other => return Err(twin.wrong("the refusal", "a time to wait", other)),
        };
        if twin.is_still() && wait > Micros::ONE {
            twin.pass(key, &limit, Micros::new(wait.get() - 1)).await?;
            let early = twin.take(key, &limit, 1).await?;
            let passes = early.decision.is_allow();
            twin.same("whether it passes a moment early", false, passes)?;
            twin.pass(key, &limit, Micros::ONE).await?;
        } else {
            twin.pass(key, &limit, wait).await?;
        }
        let taken = twin.take(key, &limit, 1).await?;
        twin.same("whether it passes when promised", true, taken.decision.is_allow())?;
    }
    Ok(())
}

async fn idle<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let period = if twin.is_still() { LONG } else { SHORT };
    let limit = twin.shape().limit(3, period)?;
    let key = twin.key("one", &limit);
    let taken = twin.take(key, &limit, 2).await?;
    let reset = taken.decision.standing().reset_after;
    twin.pass(key, &limit, reset).await?;
    twin.left(key, &limit, 3).await?;
    twin.undo(key, &limit, &taken.receipt).await?;
    twin.left(key, &limit, 3).await?;
    twin.take(key, &limit, 3).await?;
    Ok(())
}

/// How many random steps a store is led through.
const WALK: u32 = 600;

async fn walk<S: Store>(twin: &mut Twin<'_, S>) -> Result<(), String> {
    let mut dice = Dice(u64::from_le_bytes(*b"tollgate"));
    let limits = [
        twin.shape().limit(UNITS, LONG)?,
        twin.shape().limit(UNITS * 2 + 1, LONG)?,
        twin.shape().limit(3, LONG)?,
    ];
    let [first, ..] = limits;
    let keys = [
        twin.key("one", &first),
        twin.key("two", &first),
        twin.key("three", &first),
        twin.key("four", &first),
    ];
    let can_spread = !twin.bench().is_compensated() || twin.shape().takes_back();
    let mut taken = None;
    for _ in 0..WALK {
        let (key, limit) = (dice.pick(&keys)?, dice.pick(&limits)?);
        let cost = Cost::new(dice.below(4)).map_err(|error| error.to_string())?;
        match dice.below(12) {
            0 => {
                twin.peek(&[charge(key, &limit, dice.below(4))?]).await?;
            }
            1 => {
                twin.refund(key, &limit, cost).await?;
            }
            2 => {
                // Taken back at once: a charge is undone under the limit it was made under.
                if let Some((key, limit, receipt)) = taken.take() {
                    twin.undo(key, &limit, &receipt).await?;
                }
            }
            3 if dice.below(4) == 0 => {
                twin.forget(key, &limit).await?;
                taken = None;
            }
            4 if can_spread => {
                let mut charges = Vec::new();
                for _ in 0..=dice.below(3) {
                    let policy = dice.pick(&[Policy::Enforce, Policy::Enforce, Policy::Shadow])?;
                    charges.push(charge_as(dice.pick(&keys)?, &limit, dice.below(4), policy)?);
                }
                twin.settle(&charges).await?;
                taken = None;
            }
            5 => {
                let policy = Policy::Count;
                twin.settle(&[charge_as(key, &limit, dice.below(4), policy)?]).await?;
            }
            6 | 7 if twin.is_still() => {
                let spans = [1, 999_983, LONG.get() / 50, LONG.get() / 7, LONG.get() * 3];
                twin.pass(key, &limit, Micros::new(dice.pick(&spans)?)).await?;
            }
            _ => {
                let settled = twin.take(key, &limit, 1 + dice.below(3)).await?;
                taken = settled.decision.is_allow().then_some((key, limit, settled.receipt));
            }
        }
    }
    Ok(())
}

/// A few well-spread numbers, always the same: a failure can be run again.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> Result<T, String> {
        let index = self.below(list.len().max(1) as u64) as usize;
        list.get(index)
            .copied()
            .ok_or_else(|| "nothing to pick from".to_owned())
    }
}
