//! Tables that random edits went through, against a plain list.

use super::*;
use proptest::prelude::*;

const LIMIT: u64 = 60;

/// An operation on a table.
#[derive(Clone, Copy, Debug)]
enum Op {
    Acquire { after_us: u64, ttl_us: u64, units: u16 },
    Release(usize),
    Drop(u16),
    StepBack(u64),
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0_u64..5, prop_oneof![4 => Just(100_u64), 1 => 1_u64..200], 1_u16..4)
            .prop_map(|(after_us, ttl_us, units)| Op::Acquire { after_us, ttl_us, units }),
        5 => (0_usize..60).prop_map(Op::Release),
        1 => (0_u16..4).prop_map(Op::Drop),
        1 => (0_u64..50).prop_map(Op::StepBack),
    ]
}

fn edit(at: u64) -> LeaseEdit {
    LeaseEdit {
        at: Timestamp::from_micros(at),
        back: Micros::ZERO,
        release: 0,
        drop: 0,
        trim: 0,
        add: NewLease::default(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_table_holds_what_a_list_would(ops in proptest::collection::vec(any_op(), 1..120), seed: u64) {
        let mut table = LeaseTable::new(Timestamp::from_micros(1_000));
        let mut list: Vec<(u64, u16, u64)> = Vec::new();
        let (mut now, mut id) = (1_000, seed);
        for op in ops {
            let mut change = edit(now);
            match op {
                Op::Acquire { after_us, ttl_us, units } => {
                    now += after_us;
                    id = id.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
                    if u64::from(table.used() + units) > LIMIT {
                        continue;
                    }
                    let end = now + ttl_us;
                    change.add = NewLease { end: Timestamp::from_micros(end), units };
                    let index = list.iter().take_while(|lease| lease.0 <= end).count();
                    list.insert(index, (end, units, id));
                }
                Op::Release(index) => {
                    let Some(&(_, units, lease)) = list.get(index) else { continue };
                    let found = table.find(LeaseId(lease), Timestamp::EPOCH, Micros::ZERO);
                    prop_assert_eq!(found.map(|(_, units)| units), Some(units));
                    change.release = found.map_or(0, |(slot, _)| slot);
                    list.remove(index);
                    table.apply(change, LIMIT, LeaseId(0));
                    prop_assert_eq!(table.find(LeaseId(lease), Timestamp::EPOCH, Micros::ZERO), None);
                    change.release = 0;
                }
                Op::Drop(count) => {
                    change.drop = count.min(table.len);
                    list.drain(..usize::from(change.drop));
                }
                Op::StepBack(back) => {
                    change.back = Micros::new(back);
                    now = now.saturating_sub(back);
                    change.at = Timestamp::from_micros(now);
                    for lease in &mut list {
                        lease.0 = lease.0.saturating_sub(back);
                    }
                }
            }
            table.apply(change, LIMIT, LeaseId(id));
            let held: Vec<(u64, u16, u64)> =
                table.iter().map(|(end, units, lease)| (end.as_micros(), units, lease.0)).collect();
            prop_assert_eq!(&held, &list);
            prop_assert_eq!(u64::from(table.used()), list.iter().map(|lease| u64::from(lease.1)).sum::<u64>());
            prop_assert!(table.is_consistent());
            let mut bytes = Vec::new();
            table.write_packed(&mut bytes);
            let read = LeaseTable::read_packed(&bytes);
            prop_assert_eq!(read.as_ref(), Some(&table));
        }
    }

    #[test]
    fn bytes_that_no_limit_wrote_are_refused_or_harmless(
        leases in proptest::collection::vec((0_u64..100, 1_u16..3, any::<u64>()), 0..20),
        at in any::<proptest::sample::Index>(), byte: u8,
    ) {
        let mut sorted: Vec<(Timestamp, u16, LeaseId)> =
            leases.iter().map(|lease| (Timestamp::from_micros(lease.0), lease.1, LeaseId(lease.2))).collect();
        sorted.sort_by_key(|lease| lease.0);
        let table = from_leases(Timestamp::from_micros(7), &sorted, LIMIT).expect("in order");
        let mut bytes = Vec::new();
        table.write_packed(&mut bytes);
        let index = at.index(bytes.len());
        bytes[index] = byte;
        if let Some(mut read) = LeaseTable::read_packed(&bytes) {
            read.expired(Timestamp::from_micros(50), Micros::ZERO);
            for &(_, _, lease) in &sorted {
                read.find(lease, Timestamp::EPOCH, Micros::ZERO);
            }
            let mut change = edit(60);
            change.add = NewLease { end: Timestamp::from_micros(70), units: 1 };
            read.apply(change, LIMIT, LeaseId(5));
            prop_assert!(read.is_consistent());
        }
    }
}

#[test]
fn of_several_leases_with_one_id_the_oldest_is_found_first() {
    let mut table = LeaseTable::new(Timestamp::EPOCH);
    for end in [10, 20, 30] {
        let mut change = edit(0);
        change.add = NewLease {
            end: Timestamp::from_micros(end),
            units: 1,
        };
        table.apply(change, LIMIT, LeaseId(7));
    }
    let find = |now| table.find(LeaseId(7), Timestamp::from_micros(now), Micros::ZERO);
    assert_eq!(
        [0, 10, 20, 30].map(find).map(|found| found.map(|(slot, _)| slot)),
        [Some(1), Some(2), Some(3), None]
    );
}
