//! A random walk over all operations.

use crate::conformance::reference::{ReferenceModel, charge, charge_as};
use crate::conformance::samples::{LONG, UNITS};
use crate::store::Store;
use tollgate_core::{Cost, Micros, Policy};

/// The number of random operations.
const WALK: u32 = 600;

pub(super) async fn walk<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let mut dice = Dice(u64::from_le_bytes(*b"tollgate"));
    let limits = [
        model.shape().limit(UNITS, LONG)?,
        model.shape().limit(UNITS * 2 + 1, LONG)?,
        model.shape().limit(3, LONG)?,
    ];
    let [first, ..] = limits;
    let keys = [
        model.key("one", &first),
        model.key("two", &first),
        model.key("three", &first),
        model.key("four", &first),
    ];
    let can_spread = !model.harness().is_compensated() || model.shape().can_undo();
    let mut last_charge = None;
    for _ in 0..WALK {
        let (key, limit) = (dice.pick(&keys)?, dice.pick(&limits)?);
        let cost = Cost::new(dice.below(4)).map_err(|error| error.to_string())?;
        match dice.below(12) {
            0 => {
                model.peek(&[charge(key, &limit, dice.below(4))?]).await?;
            }
            1 => {
                model.refund(key, &limit, cost).await?;
            }
            2 => {
                // Undone at once: a charge is undone under the limit it was made under.
                if let Some((key, limit, receipt)) = last_charge.take() {
                    model.undo(key, &limit, &receipt).await?;
                }
            }
            3 if dice.below(4) == 0 => {
                model.forget(key, &limit).await?;
                last_charge = None;
            }
            4 if can_spread => {
                let mut charges = Vec::new();
                for _ in 0..=dice.below(3) {
                    let policy = dice.pick(&[Policy::Enforce, Policy::Enforce, Policy::Shadow])?;
                    charges.push(charge_as(dice.pick(&keys)?, &limit, dice.below(4), policy)?);
                }
                model.settle(&charges).await?;
                last_charge = None;
            }
            5 => {
                let policy = Policy::Count;
                model.settle(&[charge_as(key, &limit, dice.below(4), policy)?]).await?;
            }
            6 | 7 if model.has_manual_clock() => {
                let spans = [1, 999_983, LONG.get() / 50, LONG.get() / 7, LONG.get() * 3];
                model.advance(key, &limit, Micros::new(dice.pick(&spans)?)).await?;
            }
            _ => {
                let outcome = model.settle_one(key, &limit, 1 + dice.below(3)).await?;
                last_charge = outcome.decision.is_allow().then_some((key, limit, outcome.receipt));
            }
        }
    }
    Ok(())
}

/// A deterministic random number generator, so that a failure can be reproduced.
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
        list.get(index).copied().ok_or_else(|| "an empty list".to_owned())
    }
}
