//! The table against a plain map, and the fingerprints that give it its even spread.

use super::*;
use crate::fingerprint::HashSecret;
use crate::store::memory::shards::Shards;
use proptest::prelude::*;
use std::collections::HashMap;
use std::num::NonZeroU32;
use tollgate_core::{Counter, Limit, Micros, Rate, TokenBucket};

/// An entry with a value of its own and something outside the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TestEntry {
    fresh_at: Timestamp,
    value: u32,
}

impl Entry for TestEntry {
    fn fresh_at(&self) -> Timestamp {
        self.fresh_at
    }

    fn heap_bytes(&self) -> usize {
        self.value as usize
    }
}

#[derive(Clone, Debug)]
enum Op {
    Put(Fingerprint, TestEntry),
    Remove(Fingerprint),
    Sweep(usize, Timestamp),
    Grow,
    Shrink,
}

/// Few enough to meet again; crowded at both ends, where runs spill out of the homes and where they begin.
fn print() -> impl Strategy<Value = Fingerprint> {
    let high = prop_oneof![
        0..4_u64,
        (0..4_u64).prop_map(|n| u64::MAX - n),
        (0..64_u64).prop_map(|n| n << 58),
        (0..40_u64).prop_map(|n| (n << 30) + (1 << 63)),
    ];
    (high, 1..4_u32).prop_map(|(high, low)| Fingerprint {
        high,
        low: NonZeroU32::new(low).expect("not zero"),
    })
}

fn op() -> impl Strategy<Value = Op> {
    let entry = (0..100_u64, 0..1_000_u32).prop_map(|(fresh_at, value)| TestEntry {
        fresh_at: Timestamp::from_micros(fresh_at),
        value,
    });
    prop_oneof![
        8 => (print(), entry).prop_map(|(print, entry)| Op::Put(print, entry)),
        3 => print().prop_map(Op::Remove),
        1 => (0..200_usize, 0..100_u64).prop_map(|(count, now)| Op::Sweep(count, Timestamp::from_micros(now))),
        1 => Just(Op::Grow),
        1 => Just(Op::Shrink),
    ]
}

/// Everything that must hold of a table at any time.
fn check(table: &mut Table<TestEntry>, model: &HashMap<Fingerprint, TestEntry>) {
    assert_eq!(table.len(), model.len());
    for (&print, entry) in model {
        assert_eq!(
            table.get(table.find(print)),
            Some(entry),
            "{print:?} is where it is looked for"
        );
        assert_eq!(table.entry_mut(print), Some(&mut { *entry }), "in one go too");
    }
    let entries: Vec<Fingerprint> = table.entries().map(|(print, _)| print).collect();
    assert_eq!(entries.len(), model.len());
    assert!(entries.is_sorted());
    for (index, slot) in table.slots.iter().enumerate() {
        let Some(slot) = slot else { continue };
        let home = table.home(slot.print);
        assert!(home <= index, "nothing lies before its home");
        assert!(
            table.slots[home..index].iter().all(Option::is_some),
            "no gap between an entry and its home"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_table_is_a_map(ops in proptest::collection::vec(op(), 0..400)) {
        let mut table = Table::<TestEntry>::new(0);
        let mut model = HashMap::new();
        for op in ops {
            match op {
                Op::Put(print, new) => {
                    let lookup = table.find(print);
                    prop_assert_eq!(matches!(lookup, Lookup::Found(_)), model.contains_key(&print));
                    prop_assert_eq!(table.entry_mut(print), model.get_mut(&print));
                    if let Some(entry) = table.get_mut(lookup) {
                        *entry = new;
                    } else {
                        if table.is_full_for(1) {
                            table.grow();
                            prop_assert!(!table.is_full_for(1));
                        }
                        table.insert(print, new);
                    }
                    model.insert(print, new);
                }
                Op::Remove(print) => prop_assert_eq!(table.remove(print), model.remove(&print)),
                Op::Sweep(count, now) => {
                    let before: usize = model.values().map(|entry| entry.value as usize).sum();
                    let stats = table.sweep(count, now);
                    prop_assert!(stats.keys <= count);
                    // Only fresh keys were dropped, and every dropped key was reported.
                    let left: Vec<Fingerprint> = table.entries().map(|(print, _)| print).collect();
                    let gone = model.len() - left.len();
                    model.retain(|print, entry| entry.fresh_at > now || left.binary_search(print).is_ok());
                    prop_assert_eq!(model.len(), left.len());
                    prop_assert_eq!(stats.keys, gone);
                    let after: usize = model.values().map(|entry| entry.value as usize).sum();
                    prop_assert_eq!(stats.heap_bytes, before - after);
                }
                Op::Grow => {
                    let foreseen = table.bytes_grown();
                    table.grow();
                    prop_assert!(table.bytes() >= foreseen);
                }
                Op::Shrink => {
                    let before = table.bytes();
                    table.shrink();
                    prop_assert!(table.bytes() <= before);
                }
            }
            check(&mut table, &model);
        }
        // Swept for long enough, all of it goes and the memory with it.
        for _ in 0..3 {
            table.sweep(usize::MAX, Timestamp::from_micros(100));
            table.shrink();
        }
        prop_assert_eq!(table.len(), 0);
        prop_assert!(table.slots.len() <= Table::<TestEntry>::slots_for(SLOTS_MIN));
    }
}

/// The fingerprints of so many subjects that count up.
fn sequential(count: u32) -> Vec<Fingerprint> {
    let rate = Rate::new(1, Micros::from_secs(1)).expect("in range");
    let limit = Limit::from(TokenBucket::new(rate));
    let template = HashSecret([7; 16]).template(&Counter {
        domain: "",
        rule: "rule",
        variant: "",
        limit: &limit,
        per: &[],
    });
    (0..count)
        .map(|n| template.fingerprint(&[format!("user:{n}").as_bytes()]))
        .collect()
}

#[test]
fn no_two_of_a_million_subjects_share_a_fingerprint() {
    let mut prints = sequential(1_000_000);
    prints.sort_unstable();
    prints.dedup();
    assert_eq!(prints.len(), 1_000_000);
}

#[test]
fn the_chance_that_any_two_of_ten_million_do_is_below_one_in_a_thousand_million() {
    // The chance is n² / 2^97: so n² × 10^9 must be below 2^97.
    let squared = 10_000_000_u128.pow(2);
    assert!(squared * 1_000_000_000 < 1 << 97);
    assert_eq!(size_of::<Fingerprint>(), 96 / 8);
}

#[test]
fn a_million_subjects_fill_shards_and_homes_evenly() {
    const SHARDS: usize = 1_024;
    let shards = Shards::<TestEntry>::new(SHARDS);
    let prints = sequential(1_000_000);
    let (mut by_shard, mut by_home) = (vec![0_u64; SHARDS], vec![0_u64; SHARDS]);
    for print in &prints {
        by_shard[shards.index_of(*print)] += 1;
        by_home[(print.high >> 54) as usize] += 1;
    }
    // 977 on average with a deviation of 31: seven of these away is one chance in 10^12 each.
    for counts in [by_shard, by_home] {
        let (fewest, most) = (counts.iter().min(), counts.iter().max());
        assert!(fewest > Some(&760) && most < Some(&1_194), "{fewest:?} to {most:?}");
    }
}
