use super::*;

fn counts(allowed: u32, denied: u32) -> StepCounts {
    StepCounts {
        allowed,
        denied,
        shadow_denied: 0,
    }
}

fn totals(allowed: u32) -> StepTotals {
    StepTotals {
        counts: counts(allowed, 0),
        ..StepTotals::default()
    }
}

fn step(rule: &str, allowed: u32) -> RuleStep {
    RuleStep {
        name: RuleName::new("default", rule),
        counts: counts(allowed, 1),
        bands: BandCounts([allowed, 0, 0, 0, 1]),
    }
}

/// A time that begins a minute.
const START: u64 = 1_800_000_000 / 60 * 60;

#[test]
fn each_second_is_in_one_step_of_every_resolution() {
    let series = SeriesStore::default();
    series.start_after(START - 1);
    for second in START..START + 125 {
        series.add(second, &totals(2), &[step("plan", 1)]);
    }
    let seconds = series.totals(Resolution::Second);
    assert_eq!((seconds.values.len(), seconds.step_ms), (300, 1_000));
    assert_eq!(seconds.start_ms, (START + 125 - 300) * 1_000);
    let values: Vec<Option<u32>> = seconds
        .values
        .iter()
        .map(|value| value.map(|totals| totals.counts.allowed))
        .collect();
    assert!(values[..175].iter().all(Option::is_none), "before the start");
    assert!(values[175..].iter().all(|value| *value == Some(2)));
    // The minute in progress is not shown.
    let minutes = series.rule(&RuleName::new("default", "plan"), Resolution::Minute);
    assert_eq!(
        (minutes.values.len(), minutes.start_ms),
        (1_440, (START + 120 - 86_400) * 1_000)
    );
    assert_eq!(
        minutes.values[1_437..],
        [None, Some(counts(60, 60)), Some(counts(60, 60))]
    );
    let tens = series.totals(Resolution::TenSeconds);
    assert_eq!(
        tens.values
            .iter()
            .flatten()
            .map(|totals| totals.counts.allowed)
            .collect::<Vec<_>>(),
        vec![20; 12]
    );
    assert_eq!(*series.completed().borrow(), START + 124);
}

#[test]
fn a_ring_that_has_gone_round_has_the_last_steps_only() {
    let series = SeriesStore::default();
    series.start_after(START - 1);
    for second in 0..1_000_u32 {
        series.add(START + u64::from(second), &totals(second), &[step("plan", second)]);
    }
    let shown = series.totals(Resolution::Second);
    let values: Vec<u32> = shown
        .values
        .iter()
        .flatten()
        .map(|totals| totals.counts.allowed)
        .collect();
    assert_eq!(values, (700..1_000).collect::<Vec<u32>>());
    let rule = series.rule(&RuleName::new("default", "plan"), Resolution::Second);
    let values: Vec<u32> = rule.values.iter().flatten().map(|counts| counts.allowed).collect();
    assert_eq!(values, (700..1_000).collect::<Vec<u32>>());
    let (minute, bands) = series.last_minute()[&RuleName::new("default", "plan")];
    let sum = (940..1_000).sum();
    assert_eq!((minute, bands), (counts(sum, 60), BandCounts([sum, 0, 0, 0, 60])));
}

#[test]
fn seconds_that_were_left_out_have_no_data() {
    let series = SeriesStore::default();
    series.start_after(START - 1);
    series.add(START, &totals(1), &[step("plan", 1)]);
    series.add(START + 400, &totals(1), &[step("plan", 1)]);
    let shown = series.totals(Resolution::Second).values;
    assert_eq!(shown.iter().flatten().count(), 1, "the first is older than the ring");
    assert_eq!(shown[299].map(|totals| totals.counts.allowed), Some(1));
    let rule = series
        .rule(&RuleName::new("default", "plan"), Resolution::Second)
        .values;
    assert_eq!(rule.iter().flatten().count(), 1);
    assert_eq!(
        series.last_minute()[&RuleName::new("default", "plan")].1,
        BandCounts([1, 0, 0, 0, 1])
    );
    let minutes = series.totals(Resolution::Minute).values;
    assert_eq!(minutes.iter().flatten().count(), 1, "the minutes without data are none");
}

#[test]
fn a_clock_that_is_set_back_a_little_is_waited_for_and_far_begins_anew() {
    let series = SeriesStore::default();
    series.start_after(START - 1);
    series.add(START, &totals(1), &[step("plan", 1)]);
    assert!(series.is_due(START + 1) && !series.is_due(START) && !series.is_due(START - 5));
    assert!(series.is_due(START - 3_600));
    series.add(START - 3_600, &totals(7), &[]);
    let shown = series.totals(Resolution::Second);
    assert_eq!(shown.start_ms, (START - 3_600 - 299) * 1_000);
    assert_eq!(
        shown
            .values
            .iter()
            .flatten()
            .map(|totals| totals.counts.allowed)
            .collect::<Vec<_>>(),
        [7]
    );
    assert!(series.tracked().is_empty());
}

#[test]
fn the_busiest_rules_are_kept_and_one_that_takes_a_place_has_no_data_before() {
    let series = SeriesStore::default();
    series.start_after(START - 1);
    let many: Vec<RuleStep> = (0..RULES_MAX)
        .map(|number| step(&number.to_string(), 10 + number as u32))
        .collect();
    series.add(START, &totals(1), &many);
    assert_eq!(series.tracked().len(), RULES_MAX);
    let absent = RuleName::new("default", "absent");
    assert_eq!(
        series.rule(&absent, Resolution::Second).values[299],
        Some(StepCounts::default()),
        "it had no decisions"
    );
    // Not busy enough, then busy.
    series.add(START + 1, &totals(1), &[step("new", 15)]);
    let (first, new) = (RuleName::new("default", "0"), RuleName::new("default", "new"));
    assert!(series.tracked().contains(&first) && !series.tracked().contains(&new));
    series.add(START + 2, &totals(1), &[step("new", 50)]);
    assert!(!series.tracked().contains(&first) && series.tracked().contains(&new));
    series.add(START + 3, &totals(1), &[step("new", 50)]);
    assert_eq!(
        series.rule(&new, Resolution::Second).values[296..],
        [None, None, None, Some(counts(50, 1))]
    );
    assert_eq!(
        series.rule(&absent, Resolution::Second).values[299],
        None,
        "it may have had some"
    );
    assert_eq!(series.tracked().len(), RULES_MAX);
}

#[test]
fn all_series_take_less_than_sixteen_mebibytes() {
    let slots: usize = Resolution::ALL.iter().map(|resolution| resolution.steps() + 1).sum();
    let rule = slots * size_of::<StepCounts>() + BAND_SECONDS * size_of::<BandCounts>() + 512;
    let all = RULES_MAX * rule + slots * (size_of::<StepTotals>() + 1);
    assert!(all <= 16 << 20, "{all}");
}

#[test]
fn rules_of_a_domain_add_up() {
    let series = SeriesStore::default();
    series.start_after(START - 1);
    let other = RuleStep {
        name: RuleName::new("shop", "plan"),
        ..step("plan", 100)
    };
    for second in [START, START + 1] {
        series.add(second, &totals(1), &[step("a", 1), step("b", 2), other.clone()]);
    }
    let of_default = |name: &RuleName| &*name.domain == "default";
    assert_eq!(
        series.rules_of(Resolution::Second, of_default).values[299],
        Some(counts(3, 2))
    );
    assert_eq!(series.sum_until(START + 1, 2, of_default), counts(6, 4));
    assert_eq!(series.sum_until(START + 1, 1, |_| true), counts(103, 3));
}
