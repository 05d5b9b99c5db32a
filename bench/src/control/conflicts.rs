//! CP4: sixteen writers of one row, all with the tag that they have read. One is done per round, the others learn what came first.

use super::Context;
use super::client::{Connection, Response};
use super::fleet::{Instance, InstanceSettings};
use super::report::{Report, Times};
use super::{Durability, Postgres};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

const WRITERS: usize = 16;
const ROW: &str = "/v1/override?rule=plan&merchant=m_1";
const RULES: &str = "rules:\n- { id: plan, per: merchant, limit: 100/min }\n";

pub(super) fn measure(context: &Context, report: &mut Report) -> Result<(), String> {
    let instance = Instance::start(
        &context.tollgate,
        &InstanceSettings {
            store: None,
            database: "data_dir",
        },
    )?;
    measure_database(context, report, "SQLite", &instance)?;
    drop(instance);
    let postgres = Postgres::start_with(Durability::Disk);
    let settings = InstanceSettings {
        store: None,
        database: &postgres.create_database(),
    };
    let instance = Instance::start(&context.tollgate, &settings)?;
    measure_database(context, report, "PostgreSQL", &instance)
}

fn measure_database(context: &Context, report: &mut Report, name: &str, instance: &Instance) -> Result<(), String> {
    let rounds = context.pick(1_000, 25);
    eprintln!("{name}: {rounds} rounds of {WRITERS} writers");
    let mut admin = Connection::open(instance.admin)?;
    admin.publish(RULES, "")?;
    let created = admin.write("PUT", ROW, "if-none-match: *", &json!({ "terms": "1/min" }))?;
    let mut tag = created.etag()?;
    let writers: Result<Vec<Writer>, String> = (0..WRITERS).map(|_| Writer::start(instance.admin)).collect();
    let writers = writers?;
    let (mut exact, mut times) = (0_u64, Times::default());
    for round in 0..rounds {
        let started = Instant::now();
        for (index, writer) in (0_u64..).zip(&writers) {
            // No two writes have one meaning: that would be done without a change.
            writer.send(&tag, 2 + round * WRITERS as u64 + index);
        }
        let responses: Result<Vec<Response>, String> = writers.iter().map(Writer::response).collect();
        let responses = responses?;
        times.push(started.elapsed());
        let done = responses.iter().find(|response| response.status == 200);
        tag = done.ok_or("a round in which no write was done")?.etag()?;
        if is_exact(&responses) {
            exact += 1;
        } else {
            let texts = responses
                .iter()
                .map(|response| format!("{}: {}", response.status, response.body));
            eprintln!("round {round}: {}", texts.collect::<Vec<_>>().join("\n"));
        }
    }
    let measured = format!(
        "{name}: rounds of {WRITERS} writers of one row with one 200, and {} times 412 with a difference",
        WRITERS - 1
    );
    let bound = format!("{rounds} of {rounds}");
    report.bounded(
        "CP4",
        &measured,
        format!("{exact} of {rounds}"),
        &bound,
        exact == rounds,
    );
    report.note("CP4", &format!("{name}: a round"), times.summary());
    Ok(())
}

/// True if one write was done, and each other learned of it.
fn is_exact(responses: &[Response]) -> bool {
    let done = responses.iter().filter(|response| response.status == 200).count();
    let informed = responses.iter().filter(|response| {
        let diff = response.body.get("diff").and_then(Value::as_str);
        response.status == 412 && diff.is_some_and(|diff| !diff.is_empty())
    });
    done == 1 && informed.count() + 1 == responses.len()
}

/// A writer with a connection and a thread of its own.
struct Writer {
    writes: Sender<(String, u64)>,
    responses: Receiver<Result<Response, String>>,
}

impl Writer {
    fn start(admin: SocketAddr) -> Result<Self, String> {
        let mut connection = Connection::open(admin)?;
        let (writes, taken) = mpsc::channel::<(String, u64)>();
        let (sender, responses) = mpsc::channel();
        // Ends with the sender.
        std::thread::spawn(move || {
            for (tag, limit) in taken {
                let body = json!({ "terms": format!("{limit}/min") });
                let response = connection.send("PUT", ROW, &format!("if-match: {tag}\r\n"), Some(&body));
                if sender.send(response).is_err() {
                    return;
                }
            }
        });
        Ok(Self { writes, responses })
    }

    /// Writes, unless it has ended: then there is no response.
    fn send(&self, tag: &str, limit: u64) {
        let _ = self.writes.send((tag.to_owned(), limit));
    }

    fn response(&self) -> Result<Response, String> {
        self.responses.recv().map_err(|_| "a writer has ended")?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_needs_one_write_and_a_difference_for_each_other() {
        let response = |status, diff: &str| Response {
            status,
            body: json!({ "diff": diff }),
        };
        assert!(is_exact(&[response(412, "-a"), response(200, ""), response(412, "-a")]));
        assert!(!is_exact(&[response(200, ""), response(200, ""), response(412, "-a")]));
        assert!(!is_exact(&[response(200, ""), response(412, "")]));
        assert!(!is_exact(&[response(200, ""), response(503, "-a")]));
    }
}
