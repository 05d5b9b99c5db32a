//! Requests with an idempotency key: done once, and answered again with the first response.
//!
//! A key is stored with the commit it belongs to, then with the response. A process that ends between the two has the revision: the
//! retry is answered from it.

use crate::control::database::Database;
use crate::control::database::connection::parameters;
use crate::control::database::error::{DatabaseError, DatabaseResult};
use crate::control::database::requests::{IdempotencyKey, StoredResponse};
use crate::control::database::writer::WriteRequest;
use crate::control::database::writer::ledger::Ledger;
use crate::control::model::Digest;

/// The age up to which a key is known.
pub(in crate::control::database) const KEPT_MS: u64 = 86_400_000;

impl Database {
    /// Returns the response that was given to this request before. None also if it was committed and its response is not stored:
    /// [`Database::commit_once`] knows.
    ///
    /// # Errors
    /// [`DatabaseError::KeyReused`] if the key was used with another request; an unavailable or damaged database.
    pub async fn idempotent(&self, key: &IdempotencyKey) -> DatabaseResult<Option<StoredResponse>> {
        let oldest = (self.shared.clock)().saturating_sub(KEPT_MS);
        let found = self
            .list(FIND, parameters![&key.principal, &key.key_hash, oldest], |row| {
                Ok((row.parsed(0, Digest::parse)?, row.number(1)?, row.text(2)?))
            })
            .await?;
        let Some((digest, status, body)) = found.into_iter().next() else {
            return Ok(None);
        };
        if digest != key.request_digest {
            return Err(DatabaseError::KeyReused);
        }
        let status = u16::try_from(status).map_err(|_| DatabaseError::Corrupt(format!("{status} is no status")))?;
        Ok((status != COMMITTED).then_some(StoredResponse { status, body }))
    }

    /// Stores the response to a request. The first one for a key is kept.
    ///
    /// # Errors
    /// An unavailable or full database.
    pub async fn remember_response(&self, key: &IdempotencyKey, response: &StoredResponse) -> DatabaseResult<()> {
        let request = WriteRequest::Remember(Box::new((key.clone(), response.clone())));
        self.change(request).await
    }
}

/// Writes the response to a request.
pub(in crate::control::database) async fn remember(
    ledger: &mut Ledger,
    key: &IdempotencyKey,
    response: &StoredResponse,
) -> DatabaseResult<()> {
    store(ledger, key, response.status, &response.body).await
}

/// Writes that a request was committed.
pub(in crate::control::database) async fn remember_commit(
    ledger: &mut Ledger,
    key: &IdempotencyKey,
    revision: u64,
) -> DatabaseResult<()> {
    store(ledger, key, COMMITTED, &revision.to_string()).await
}

/// The revision of a request that was committed before.
pub(in crate::control::database) async fn committed_revision(
    ledger: &mut Ledger,
    key: &IdempotencyKey,
) -> DatabaseResult<Option<u64>> {
    let oldest = ledger.now.saturating_sub(KEPT_MS);
    let found = ledger
        .connection
        .fetch_one(FIND, parameters![&key.principal, &key.key_hash, oldest])
        .await?;
    let Some(row) = found else { return Ok(None) };
    if row.parsed(0, Digest::parse)? != key.request_digest {
        return Err(DatabaseError::KeyReused);
    }
    if row.number(1)? != u64::from(COMMITTED) {
        // Between the look-up of the response and this commit, by another control service.
        return Err(DatabaseError::Unavailable(
            "the request was answered meanwhile; try again".to_owned(),
        ));
    }
    row.parsed(2, |text| text.parse().ok()).map(Some)
}

async fn store(ledger: &mut Ledger, key: &IdempotencyKey, status: u16, body: &str) -> DatabaseResult<()> {
    let now = ledger.now;
    ledger
        .connection
        .execute(
            "INSERT INTO idempotency (principal, key_hash, request_digest, status, body, at) VALUES ($1, $2, $3, $4, $5, $6)
             ON CONFLICT (principal, key_hash) DO UPDATE SET request_digest = excluded.request_digest,
             status = excluded.status, body = excluded.body, at = excluded.at
             WHERE idempotency.at < $7 OR (idempotency.status = 0 AND idempotency.request_digest = excluded.request_digest)",
            parameters![
                &key.principal,
                &key.key_hash,
                &key.request_digest,
                u64::from(status),
                body,
                now,
                now.saturating_sub(KEPT_MS),
            ],
        )
        .await?;
    Ok(())
}

const FIND: &str =
    "SELECT request_digest, status, body FROM idempotency WHERE principal = $1 AND key_hash = $2 AND at >= $3";
/// The status of a request that was committed and has no response yet; its body is the revision.
const COMMITTED: u16 = 0;
