//! The sequential steps of the suite, for one algorithm.

mod time;
mod walk;

use self::time::{idle, leases, refill};
use self::walk::walk;
use super::reference::{ReferenceModel, charge, charge_as};
use super::samples::{LONG, Shape, UNITS};
use crate::store::Store;
use tollgate_core::{Cost, Limit, Micros, Policy, Retry};

/// Runs all steps, each on counters of its own.
pub(super) async fn all<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    macro_rules! run {
        ($($step:ident: $name:literal),* $(,)?) => {
            $(model.start_step($name); $step(model).await?;)*
        };
    }
    run!(
        countdown: "a limit is counted down to zero",
        denial: "a denial changes nothing",
        peek: "a peek consumes nothing",
        no_cost: "a cost of zero peeks",
        too_much: "a cost above the limit never passes",
        all_or_none: "several keys are charged all or none",
        twice: "charges of one key in one request add up",
        each: "several requests are settled each on its own, in order",
        shadow: "a shadow limit never denies",
        count: "a counting limit is charged when denied",
        undo: "undo reverses one charge",
        refund: "a refund never exceeds the capacity",
        forget: "a forgotten key is fresh",
        distinct_counters: "counters of other identities are distinct",
        changed: "a limit changes under a live key",
        leases: "a lease is released, renewed, and expires",
        refill: "units refill when promised",
        idle: "an idle key is fresh",
        walk: "a random walk",
    );
    Ok(())
}

async fn countdown<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let limit = model.shape().limit(UNITS, LONG)?;
    let key = model.key("one", &limit);
    for n in 1..=UNITS {
        let outcome = model.settle_one(key, &limit, 1).await?;
        model.expect_equal("whether it is allowed", true, outcome.decision.is_allow())?;
        model.expect_equal("units remaining", UNITS - n, outcome.decision.standing().remaining)?;
    }
    for _ in 0..3 {
        let outcome = model.settle_one(key, &limit, 1).await?;
        model.expect_equal("whether one more passes", false, outcome.decision.is_allow())?;
    }
    let large = model.key("large costs", &limit);
    model.settle_one(large, &limit, UNITS - 2).await?;
    let outcome = model.settle_one(large, &limit, 3).await?;
    model.expect_equal("whether more than is left passes", false, outcome.decision.is_allow())?;
    let outcome = model.settle_one(large, &limit, 2).await?;
    model.expect_equal("whether what is left passes", true, outcome.decision.is_allow())
}

async fn denial<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let limit = model.shape().limit(UNITS, LONG)?;
    let key = model.key("one", &limit);
    model.settle_one(key, &limit, UNITS - 1).await?;
    for _ in 0..5 {
        model.settle_one(key, &limit, 2).await?;
        model.expect_remaining(key, &limit, 1).await?;
    }
    model.settle_one(key, &limit, 1).await?;
    model.expect_remaining(key, &limit, 0).await
}

async fn peek<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let limit = model.shape().limit(UNITS, LONG)?;
    let (key, other) = (model.key("one", &limit), model.key("other", &limit));
    for _ in 0..3 {
        model
            .peek(&[charge(key, &limit, UNITS)?, charge(other, &limit, 1)?])
            .await?;
    }
    model.expect_remaining(key, &limit, UNITS).await?;
    model.settle_one(key, &limit, 3).await?;
    model.peek(&[charge(key, &limit, UNITS)?]).await?;
    model.peek(&[charge_as(key, &limit, UNITS, Policy::Count)?]).await?;
    model.expect_remaining(key, &limit, UNITS - 3).await
}

async fn no_cost<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let limit = model.shape().limit(UNITS, LONG)?;
    let key = model.key("one", &limit);
    for remaining in [UNITS, 0] {
        for _ in 0..2 {
            let outcome = model.settle_one(key, &limit, 0).await?;
            model.expect_equal("whether nothing passes", true, outcome.decision.is_allow())?;
            model.expect_remaining(key, &limit, remaining).await?;
        }
        model.settle_one(key, &limit, remaining).await?;
    }
    let empty = model.settle(&[]).await?;
    model.expect_equal("whether no charge at all passes", true, empty.allowed)
}

async fn too_much<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let limit = model.shape().limit(UNITS, LONG)?;
    let key = model.key("one", &limit);
    for cost in [UNITS + 1, Cost::MAX.get()] {
        let outcome = model.settle_one(key, &limit, cost).await?;
        model.expect_equal("when it would pass", Some(Retry::Never), outcome.decision.retry())?;
    }
    model.expect_remaining(key, &limit, UNITS).await
}

async fn all_or_none<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let limit = model.shape().limit(UNITS, LONG)?;
    let bucket = Shape::TokenBucket.limit(UNITS, LONG)?;
    let full = model.key("full", &bucket);
    model.settle_one(full, &bucket, UNITS).await?;
    for (name, other) in [("same", limit), ("raised", model.shape().limit(UNITS + 2, LONG)?)] {
        // A shaped limit that is charged and compensated keeps its promise: see `Harness::compensated`.
        if model.harness().is_compensated() && !model.shape().can_undo() {
            continue;
        }
        let (one, two) = (model.key(name, &limit), model.key(&format!("{name} two"), &other));
        let units = limit_of(&other, model).await?;
        for order in [[(one, limit), (full, bucket)], [(full, bucket), (two, other)]] {
            let [(first, a), (second, b)] = order;
            let settlement = model.settle(&[charge(first, &a, 1)?, charge(second, &b, 1)?]).await?;
            model.expect_equal("whether it is allowed", false, settlement.allowed)?;
        }
        model.expect_remaining(one, &limit, UNITS).await?;
        model.expect_remaining(two, &other, units).await?;
        let all = [charge(one, &limit, 2)?, charge(two, &other, 3)?];
        let settlement = model.settle(&all).await?;
        model.expect_equal("whether it is allowed below the capacity", true, settlement.allowed)?;
        model.expect_remaining(one, &limit, UNITS - 2).await?;
        model.expect_remaining(two, &other, units - 3).await?;
    }
    model.expect_remaining(full, &bucket, 0).await
}

/// The capacity of a limit.
async fn limit_of<S: Store>(limit: &Limit, model: &mut ReferenceModel<'_, S>) -> Result<u64, String> {
    let key = model.key("unused", limit);
    Ok(model.peek_one(key, limit).await?.decision.standing().limit)
}

async fn twice<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let limit = model.shape().limit(UNITS, LONG)?;
    let (key, other) = (model.key("one", &limit), model.key("other", &limit));
    let too_much = [charge(key, &limit, 4)?, charge(key, &limit, 4)?];
    let settlement = model.settle(&too_much).await?;
    model.expect_equal("whether the sum passes", false, settlement.allowed)?;
    model.expect_remaining(key, &limit, UNITS).await?;
    let mixed = [
        charge(key, &limit, 2)?,
        charge(other, &limit, 1)?,
        charge(key, &limit, 3)?,
    ];
    let settlement = model.settle(&mixed).await?;
    model.expect_equal("whether it is allowed", true, settlement.allowed)?;
    model.expect_remaining(key, &limit, UNITS - 5).await?;
    model.expect_remaining(other, &limit, UNITS - 1).await
}

async fn each<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let limit = model.shape().limit(UNITS, LONG)?;
    let (one, two) = (model.key("one", &limit), model.key("two", &limit));
    let mut requests = vec![
        (vec![charge(one, &limit, 3)?], true),
        (vec![charge(two, &limit, 1)?, charge(one, &limit, 1)?], true),
        (Vec::new(), true),
        (vec![charge(one, &limit, 4)?], false),
        (vec![charge(one, &limit, 2)?, charge(one, &limit, 1)?], true),
        (vec![charge(one, &limit, 1)?], false),
        (vec![charge_as(one, &limit, 1, Policy::Shadow)?], true),
    ];
    // A shaped limit that is charged and compensated keeps its promise: see `Harness::compensated`.
    if !model.harness().is_compensated() || model.shape().can_undo() {
        requests.push((vec![charge(two, &limit, 1)?, charge(one, &limit, 1)?], false));
    }
    requests.push((vec![charge(two, &limit, UNITS - 1)?], true));
    requests.push((vec![charge(two, &limit, 1)?], false));
    let (requests, allowed): (Vec<_>, Vec<bool>) = requests.into_iter().unzip();
    let settlements = model.settle_each(&requests).await?;
    let got = settlements.iter().map(|settlement| settlement.allowed).collect();
    model.expect_equal("which are allowed", allowed, got)?;
    model.expect_remaining(one, &limit, 0).await?;
    model.expect_remaining(two, &limit, 0).await
}

async fn shadow<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let limit = model.shape().limit(UNITS, LONG)?;
    let (shadow, real) = (model.key("shadow", &limit), model.key("real", &limit));
    let both = [
        charge_as(shadow, &limit, 4, Policy::Shadow)?,
        charge_as(real, &limit, 1, Policy::Enforce)?,
    ];
    for remaining in [UNITS - 4, UNITS - 4] {
        let settlement = model.settle(&both).await?;
        model.expect_equal("whether it is allowed", true, settlement.allowed)?;
        model.expect_remaining(shadow, &limit, remaining).await?;
    }
    model.expect_remaining(real, &limit, UNITS - 2).await?;
    if model.harness().is_compensated() && !model.shape().can_undo() {
        return Ok(());
    }
    model.settle_one(real, &limit, UNITS - 2).await?;
    let small = [
        charge_as(shadow, &limit, 1, Policy::Shadow)?,
        charge_as(real, &limit, 1, Policy::Enforce)?,
    ];
    let settlement = model.settle(&small).await?;
    model.expect_equal("whether an enforced denial denies", false, settlement.allowed)?;
    model.expect_remaining(shadow, &limit, UNITS - 4).await
}

async fn count<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let limit = model.shape().limit(UNITS, LONG)?;
    let (counting, full) = (model.key("counting", &limit), model.key("full", &limit));
    model.settle_one(full, &limit, UNITS).await?;
    let both = [
        charge_as(full, &limit, 1, Policy::Enforce)?,
        charge_as(counting, &limit, 2, Policy::Count)?,
    ];
    let settlement = model.settle(&both).await?;
    model.expect_equal("whether it is allowed", false, settlement.allowed)?;
    model.expect_remaining(counting, &limit, UNITS - 2).await?;
    let more = [charge_as(counting, &limit, UNITS - 1, Policy::Count)?];
    let settlement = model.settle(&more).await?;
    model.expect_equal("whether more than is left passes", false, settlement.allowed)?;
    // The core says what a denied counter consumes: all of it, except for a shaped limit.
    model.peek_one(counting, &limit).await?;
    Ok(())
}

async fn undo<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let limit = model.shape().limit(UNITS, LONG)?;
    let key = model.key("one", &limit);
    let first = model.settle_one(key, &limit, 3).await?;
    let second = model.settle_one(key, &limit, 2).await?;
    let back = |units: u64| if can_undo(&limit) { units } else { 0 };
    model.undo(key, &limit, &first.receipt).await?;
    model.expect_remaining(key, &limit, UNITS - 5 + back(3)).await?;
    if model.has_manual_clock() {
        // After another refund a charge counts as drained since it was made: exact only while no time passes.
        model.settle_one(key, &limit, 1).await?;
        model.undo(key, &limit, &second.receipt).await?;
        model.expect_remaining(key, &limit, UNITS - 6 + back(5)).await?;
    }
    let last = model.key("the last one", &limit);
    model.settle_one(last, &limit, 3).await?;
    let second = model.settle_one(last, &limit, 2).await?;
    model.undo(last, &limit, &second.receipt).await?;
    model.expect_remaining(last, &limit, UNITS - 5 + back(2)).await?;
    let unseen = model.key("unseen", &limit);
    model.undo(unseen, &limit, &first.receipt).await?;
    model.expect_remaining(unseen, &limit, UNITS).await
}

fn can_undo(limit: &Limit) -> bool {
    !matches!(limit, Limit::LeakyBucket(limit) if limit.is_shaping())
}

async fn refund<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let limit = model.shape().limit(UNITS, LONG)?;
    let key = model.key("one", &limit);
    model.refund(key, &limit, Cost::MAX).await?;
    model.expect_remaining(key, &limit, UNITS).await?;
    model.settle_one(key, &limit, 5).await?;
    let back = |units: u64| if can_undo(&limit) { units } else { 0 };
    let decision = model.refund(key, &limit, Cost::ONE).await?;
    model.expect_equal("units remaining", UNITS - 5 + back(1), decision.standing().remaining)?;
    model.refund(key, &limit, Cost::MAX).await?;
    model.expect_remaining(key, &limit, UNITS - 5 + back(5)).await
}

async fn forget<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let limit = model.shape().limit(UNITS, LONG)?;
    let (key, other) = (model.key("one", &limit), model.key("other", &limit));
    let forgotten = model.forget(key, &limit).await?;
    model.expect_equal("whether an unseen key was there", false, forgotten)?;
    model.settle_one(key, &limit, UNITS).await?;
    model.settle_one(other, &limit, UNITS).await?;
    let forgotten = model.forget(key, &limit).await?;
    model.expect_equal("whether it was there", true, forgotten)?;
    model.expect_remaining(key, &limit, UNITS).await?;
    let forgotten = model.forget(key, &limit).await?;
    model.expect_equal("whether it was still there", false, forgotten)?;
    model.expect_remaining(other, &limit, 0).await
}

async fn distinct_counters<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let limit = model.shape().limit(UNITS, LONG)?;
    let raised = model.shape().limit(UNITS * 2, LONG)?;
    let subject: &[&[u8]] = &[b"subject"];
    let key = model.key_of("one", "", &limit, subject);
    let again = model.key_of("one", "", &raised, subject);
    model.expect_equal("the key of the same counter", key, again)?;
    let mut keys = vec![
        (key, limit),
        (model.key_of("two", "", &limit, subject), limit),
        (model.key_of("one", "b", &limit, subject), limit),
        (model.key_of("one", "", &limit, &[b"subjecu"]), limit),
        (model.key_of("one", "", &limit, &[b"subject\0"]), limit),
        (model.key_of("one", "", &limit, &[b""]), limit),
        (model.key_of("pair", "", &limit, &[b"a", b"bc"]), limit),
        (model.key_of("pair", "", &limit, &[b"a", b"bd"]), limit),
        (model.key_of("pair", "", &limit, &[b"b", b"bc"]), limit),
        (model.key_of("pair", "", &limit, &[b"ab", b"c"]), limit),
        (model.key_of("pair", "", &limit, &[b"abc", b""]), limit),
        (model.key_of("pair", "", &limit, &[b"", b"abc"]), limit),
    ];
    if limit.window().is_some() {
        let longer = model.shape().limit(UNITS, Micros::new(LONG.get() * 2))?;
        keys.push((model.key_of("one", "", &longer, subject), longer));
    }
    for shape in Shape::ALL {
        // A shaped leaky bucket has the counter of a leaky bucket.
        let other = shape.limit(UNITS, LONG)?;
        if shape != Shape::Queue && other.algorithm() != limit.algorithm() {
            keys.push((model.key_of("one", "", &other, subject), other));
        }
    }
    for (index, &(key, limit)) in keys.iter().enumerate() {
        model.expect_remaining(key, &limit, UNITS).await?;
        model.settle_one(key, &limit, UNITS).await?;
        for &(later, limit) in keys.iter().skip(index + 1) {
            model.expect_remaining(later, &limit, UNITS).await?;
        }
    }
    Ok(())
}

async fn changed<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let limit = model.shape().limit(UNITS, LONG)?;
    let raised = model.shape().limit(UNITS * 3, LONG)?;
    let lowered = model.shape().limit(2, LONG)?;
    let key = model.key("one", &limit);
    model.settle_one(key, &limit, UNITS).await?;
    model.settle_one(key, &limit, 1).await?;
    // The core converts the state to the new numbers; the store must keep the same state.
    model.peek_one(key, &raised).await?;
    model.settle_one(key, &raised, 2).await?;
    model.peek_one(key, &lowered).await?;
    model.settle_one(key, &lowered, 1).await?;
    model.peek_one(key, &limit).await?;
    for _ in 0..UNITS * 3 {
        model.settle_one(key, &raised, 1).await?;
    }
    Ok(())
}
