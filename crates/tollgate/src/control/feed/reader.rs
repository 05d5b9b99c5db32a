//! Reads of the cache.
use super::Signer;
use super::parts::Manifest;
use super::set::{decode_set, encode_set};
use crate::control::model::{Digest, SetFile};
use std::time::Duration;
use tollgate_limiter::store::redis::{CacheError, CacheWrite, ConfigCache};
/// Reader.
#[derive(Clone, Debug)]
pub struct CacheReader {
    cache: ConfigCache,
    signer: Signer,
}
impl CacheReader {
    /// New.
    pub fn with_signer(cache: ConfigCache, signer: Signer) -> Self {
        Self { cache, signer }
    }
    /// Set.
    pub async fn set(&self, set: &Digest) -> Result<Vec<SetFile>, CacheError> {
        let name = format!("set:{set}");
        let value = self
            .cache
            .read(&[&name])
            .await?
            .pop()
            .flatten()
            .ok_or_else(|| CacheError::Invalid("missing".into()))?;
        let manifest = Manifest::parse(&name, &value, &self.signer).map_err(CacheError::Invalid)?;
        let names: Vec<String> = (0..manifest.parts).map(|index| manifest.part_name(index)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let parts: Vec<Vec<u8>> = self
            .cache
            .read(&names)
            .await?
            .into_iter()
            .map(Option::unwrap_or_default)
            .collect();
        decode_set(set, &value, &parts, &self.signer).map_err(CacheError::Invalid)
    }
    /// Write.
    pub async fn write_set(&self, files: &[SetFile], ttl: Duration) -> Result<(), CacheError> {
        let (manifest, parts) = encode_set(files);
        for (index, value) in parts.iter().enumerate() {
            let name = manifest.part_name(index);
            self.cache
                .write(&[CacheWrite::Set {
                    name: &name,
                    value,
                    ttl,
                }])
                .await?;
        }
        let name = manifest.kind.name();
        let value = manifest.encode(&self.signer);
        self.cache
            .write(&[CacheWrite::Set {
                name: &name,
                value: value.as_bytes(),
                ttl,
            }])
            .await?;
        Ok(())
    }
}
