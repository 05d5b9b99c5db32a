//! Storm figures.
use tollgate_sim::report::storm_table;
use tollgate_sim::scenario::storm::{StormCase, StormPlan, Strategy, run};
fn main() {
    for case in [
        StormCase::Storm,
        StormCase::StormJitter,
        StormCase::Burst,
        StormCase::BurstJitter,
        StormCase::MinuteLong,
        StormCase::OneAddress,
        StormCase::ManyAddresses,
        StormCase::Quitters,
        StormCase::Minute,
    ] {
        let plan = StormPlan {
            seed: 1,
            cases: vec![case],
            strategies: vec![Strategy::Queue, Strategy::Spread],
        };
        println!("{}", storm_table(&run(&plan)));
    }
}
