//! The one arithmetic primitive: quotient and remainder of a product, at the edges and at random.

use std::num::NonZeroU64;
use tollgate_core::testing::random::Random;
use tollgate_core::{lua, muldiv};
use tollgate_limiter::testing::servers::{Server, ServerKind};

/// What a script tells of a quotient that a double does not hold.
const END: u64 = 1 << 53;

const PLAY: &str = "
local answers = {}
local numbers = {}
for word in string.gmatch(ARGV[1], '%d+') do
  numbers[#numbers + 1] = tonumber(word)
end
for at = 1, #numbers, 3 do
  answers[#answers + 1] = string.format('%.0f %.0f', muldiv(numbers[at], numbers[at + 1], numbers[at + 2]))
end
return answers";

/// Zero, both ends, and the neighbours of every power of two.
fn edges() -> Vec<u64> {
    let powers = (0..53).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
    powers
        .chain([END - 1, END - 2, 1_000_000_000, 31_622_400_000_000])
        .collect()
}

fn compare(cases: &[[u64; 3]]) {
    for kind in ServerKind::ALL {
        let server = Server::start(kind);
        let client = redis::Client::open(server.url()).expect("an address");
        let mut connection = client.get_connection().expect("a server that answers");
        for cases in cases.chunks(20_000) {
            let input: Vec<String> = cases.iter().flatten().map(u64::to_string).collect();
            let answers: Vec<String> = redis::cmd("EVAL")
                .arg(format!("{}{PLAY}", lua::TWINS))
                .arg(0)
                .arg(input.join(" "))
                .query(&mut connection)
                .expect("an answer");
            assert_eq!(answers.len(), cases.len());
            for (&[a, b, n], answer) in cases.iter().zip(answers) {
                let (quotient, rest) = muldiv(a, b, NonZeroU64::new(n).expect("not zero"));
                assert_eq!(
                    answer,
                    format!("{} {rest}", quotient.min(END)),
                    "{kind:?}: {a} * {b} / {n}"
                );
            }
        }
    }
}

#[test]
fn products_are_divided_as_in_the_core_at_every_edge() {
    let edges = edges();
    let mut random = Random::new(3);
    let mut cases = Vec::new();
    for &a in &edges {
        for &b in &edges {
            // Every pair, each with a few divisors.
            for n in [random.pick(&edges), random.pick(&edges), a, b] {
                cases.push([a, b, n.max(1)]);
            }
        }
    }
    compare(&cases);
}

#[test]
fn products_are_divided_as_in_the_core_at_random() {
    let mut random = Random::new(4);
    let mut number = || {
        let bits = random.between(1, 53);
        random.next() >> (64 - bits)
    };
    let cases: Vec<[u64; 3]> = (0..100_000).map(|_| [number(), number(), number().max(1)]).collect();
    compare(&cases);
}
