//! One caller in each of four processes, at full speed against a limit of ten per second: the number of server calls.

use super::load::now_us;
use super::server::WatchedServer;
use crate::exact::PROCESSES;
use crate::exact::hammer::Plan;
use crate::exact::oracle::{self, ExactnessResult};

/// The result.
pub(crate) struct HotKeyResult {
    /// Script and function calls, without those of the first second.
    pub(crate) calls_per_second: f64,
    pub(crate) exactness: ExactnessResult,
}

const PER_SECOND: u64 = 10;
const SECONDS: u64 = 6;

pub(crate) fn measure(server: &mut WatchedServer) -> Result<HotKeyResult, String> {
    let plan = Plan::soon("token_bucket", PER_SECOND, 1, SECONDS * 1_000_000);
    let children = plan.start(&server.url(), PROCESSES)?;
    let mut calls = [0; 2];
    let moments = [plan.from_us + 1_000_000, plan.from_us + SECONDS * 1_000_000];
    for (calls, moment) in calls.iter_mut().zip(moments) {
        std::thread::sleep(std::time::Duration::from_micros(moment.saturating_sub(now_us())));
        *calls = server.script_calls()?;
    }
    let seen = plan.finish(children)?;
    let [first, last] = calls;
    Ok(HotKeyResult {
        calls_per_second: (last - first) as f64 / (SECONDS - 1) as f64,
        exactness: oracle::compare(&plan, &seen)?,
    })
}
