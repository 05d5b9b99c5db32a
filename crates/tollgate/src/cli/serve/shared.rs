//! What the log says of a shared store: what it is when it is first reached, and whenever it goes and comes back.

use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;
use tollgate_limiter::store::redis::Redis;

const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Watches a store without end. `is_known`: whether it was reached already.
pub(super) async fn watch(store: Arc<Redis>, mut is_known: bool) {
    let mut clock = tokio::time::interval(LOOK_EVERY);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_away = !is_known;
    loop {
        clock.tick().await;
        match store.fault() {
            // Told once, however long it lasts.
            Some(fault) if !is_away => {
                is_away = true;
                tracing::error!(fault, "the store cannot be reached; rules say what holds meanwhile");
            }
            Some(_) => {}
            None => {
                if is_away {
                    is_away = false;
                    tracing::info!("the store can be reached again");
                }
                if !is_known {
                    is_known = survey(&store).await;
                }
            }
        }
    }
}

/// Says what a store is and what is wrong with it, and whether it could be reached.
pub(super) async fn survey(store: &Redis) -> bool {
    match store.survey().await {
        Ok(survey) => {
            tracing::info!(
                server = survey.server,
                functions = survey.is_function,
                "reached the store"
            );
            for warning in &survey.warnings {
                tracing::warn!("the store: {warning}");
            }
            true
        }
        Err(fault) => {
            tracing::error!(fault, "the store cannot be reached; rules say what holds until it can");
            false
        }
    }
}
