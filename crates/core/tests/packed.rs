//! What is written of a key can be read again, whatever happened to the key.

use tollgate_core::Limit;
use tollgate_core::testing::random::Random;
use tollgate_core::testing::timeline::Timeline;

/// Lives in which a clock near the epoch is set back behind it, and in which a log is emptied before its clock is set back.
const SEEDS: [u64; 2] = [4_912_838_792_830_128_920, 5_392_698_474_001_522_387];

fn replay(algorithm: &str, seed: u64) -> usize {
    let mut timeline = Timeline::new(algorithm, seed);
    for step in 0..1_500 {
        let Some(event) = timeline.step() else { return step };
        let Some(state) = timeline.state() else { continue };
        let mut bytes = Vec::new();
        state.write_packed(&mut bytes);
        let read = event.limit.read_packed(&bytes);
        assert_eq!(
            read.as_ref(),
            Some(state),
            "{algorithm}, seed {seed}, step {step}: {event:?}"
        );
    }
    1_500
}

#[test]
fn what_is_written_can_be_read() {
    for algorithm in Limit::ALGORITHMS {
        let mut seeds = Random::new(7);
        let mut steps: usize = SEEDS.iter().map(|seed| replay(algorithm, *seed)).sum();
        while steps < 100_000 {
            steps += replay(algorithm, seeds.next());
        }
    }
}
