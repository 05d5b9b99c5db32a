//! The claim of a fleet by one database: of several that could be written, one is.

use super::Signer;
use super::head::is_database_id;
use super::reader::CacheReader;
use std::time::Duration;
use tollgate_limiter::store::redis::{CacheError, CacheWrite};

/// The database that a fleet follows, and the instance that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The id of the database.
    pub database_id: String,
    /// The instance, for people.
    pub owner: String,
}

/// The name of its key.
pub const CLAIM: &str = "database";

/// The state of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// It is the one that was wanted.
    Held,
    /// Another database has it.
    Other(Claim),
}

impl Claim {
    /// The value of its key.
    pub fn encode(&self, signer: &Signer) -> String {
        let owner: String = self
            .owner
            .chars()
            .filter(|char| !char.is_whitespace())
            .take(128)
            .collect();
        signer.seal(CLAIM, &format!("1 {} {owner}", self.database_id))
    }

    /// Reads the value of its key; none if no instance of this fleet has written it.
    pub fn parse(value: &[u8], signer: &Signer) -> Option<Self> {
        let mut fields = signer.open(CLAIM, value)?.split(' ');
        let (format, id, owner) = (fields.next()?, fields.next()?, fields.next()?);
        (format == "1" && is_database_id(id) && fields.next().is_none()).then(|| Self {
            database_id: id.to_owned(),
            owner: owner.to_owned(),
        })
    }
}

impl CacheReader {
    /// Claims the fleet, or renews the claim. A value that no instance of this fleet has written is replaced.
    ///
    /// # Errors
    /// The cache does not answer.
    pub async fn claim(&self, claim: &Claim, ttl: Duration) -> Result<ClaimState, CacheError> {
        let value = claim.encode(&self.signer).into_bytes();
        for _ in 0..CLAIM_ATTEMPTS {
            let found = self.cache.read(&[CLAIM]).await?.pop().flatten();
            match found.as_deref().map(|found| Claim::parse(found, &self.signer)) {
                Some(Some(held)) if held.database_id == claim.database_id => {
                    self.cache.write(&[CacheWrite::Touch { name: CLAIM, ttl }]).await?;
                    return Ok(ClaimState::Held);
                }
                Some(Some(other)) => return Ok(ClaimState::Other(other)),
                None | Some(None) => {
                    if self.cache.replace(CLAIM, found.as_deref(), &value, ttl).await? {
                        return Ok(ClaimState::Held);
                    }
                }
            }
        }
        Err(CacheError::Unavailable(
            "the claim of the database changes all the time".to_owned(),
        ))
    }

    /// Moves the claim from whatever is there to another database, and returns what was there.
    ///
    /// # Errors
    /// The cache does not answer, or another instance moves it at the same time.
    pub async fn move_claim(&self, claim: &Claim, ttl: Duration) -> Result<Option<Vec<u8>>, CacheError> {
        let value = claim.encode(&self.signer).into_bytes();
        let found = self.cache.read(&[CLAIM]).await?.pop().flatten();
        match self.cache.replace(CLAIM, found.as_deref(), &value, ttl).await? {
            true => Ok(found),
            false => Err(CacheError::Unavailable(
                "another instance adopts a database; try again".to_owned(),
            )),
        }
    }

    /// Puts back what a claim has replaced. One that was moved on since stays.
    ///
    /// # Errors
    /// The cache does not answer.
    pub async fn restore_claim(&self, claim: &Claim, before: Option<&[u8]>, ttl: Duration) -> Result<(), CacheError> {
        let value = claim.encode(&self.signer).into_bytes();
        let before = before.unwrap_or(NO_CLAIM);
        self.cache.replace(CLAIM, Some(&value), before, ttl).await?;
        Ok(())
    }
}

/// A value that no instance writes as a claim: the next one replaces it.
const NO_CLAIM: &[u8] = b"-";
const CLAIM_ATTEMPTS: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_reads_as_it_was_written_by_the_fleet_only() {
        let signer = Signer::new(Some(b"secret"), "tg");
        let claim = Claim {
            database_id: "abc".to_owned(),
            owner: "host a".to_owned(),
        };
        let read = Claim::parse(claim.encode(&signer).as_bytes(), &signer).unwrap();
        assert_eq!((read.database_id.as_str(), read.owner.as_str()), ("abc", "hosta"));
        assert_eq!(
            Claim::parse(claim.encode(&Signer::new(None, "tg")).as_bytes(), &signer),
            None
        );
        assert_eq!(Claim::parse(signer.seal("head", "1 abc x").as_bytes(), &signer), None);
    }
}
