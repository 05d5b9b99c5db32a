//! Keys in the shared store: `<prefix>:{<tag>}:<hash>`, without a caller's bytes in them.
//!
//! The hash is 128 bits of BLAKE3 over the length-prefixed parts of a counter's identity. The tag puts all counters of
//! one subject into one slot of a cluster: it is derived from the first `per` value. With a secret, only who knows it
//! can compute the key of a subject.

use crate::store::Key;
use std::fmt;
use tollgate_core::{Counter, Limit};

/// The key of a counter in the shared store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RedisKey {
    tag: u16,
    hash: [u8; 16],
}

/// A key with the subject left open: the identity of a rule is hashed once, its subject for each request.
#[derive(Clone, Copy)]
pub struct RedisKeyTemplate {
    key: [u8; 32],
    /// The tag of the counter without a subject.
    global_tag: u16,
}

/// Makes keys and their text.
#[derive(Clone)]
pub(crate) struct RedisKeyspace {
    prefix: Box<str>,
    tags: u16,
    secret: [u8; 32],
    tag_secret: [u8; 32],
}

/// A key as the server stores it.
#[derive(Clone, Copy)]
pub(crate) struct KeyText {
    bytes: [u8; Self::LENGTH_MAX],
    length: usize,
}

/// Part of the keys of leases: versions that encode them differently share a server during an upgrade.
const LEASES_FORMAT: &[u8] = b"leases 2";

impl RedisKeyspace {
    /// The longest prefix.
    pub(crate) const PREFIX_MAX: usize = 32;

    /// Keys that start with `prefix`, at most [`RedisKeyspace::PREFIX_MAX`] bytes long, over `tags` tags.
    pub(crate) fn new(prefix: &str, tags: u16, secret: Option<&[u8]>) -> Self {
        let secret = *blake3::hash(secret.unwrap_or_default()).as_bytes();
        Self {
            prefix: prefix.into(),
            tags: tags.max(1),
            secret,
            tag_secret: *blake3::keyed_hash(&secret, b"tag").as_bytes(),
        }
    }

    pub(crate) fn template(&self, counter: &Counter<'_>) -> RedisKeyTemplate {
        let key = self.template_key(counter);
        let placement = counter.placement();
        // A counter without a subject is spread by its rule.
        let tag_source = match placement.variant == counter.variant {
            true => key,
            false => self.template_key(&placement),
        };
        RedisKeyTemplate {
            key,
            global_tag: self.tag(&tag_source),
        }
    }

    fn template_key(&self, counter: &Counter<'_>) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        let identity = Counter { per: &[], ..*counter };
        identity.write(|piece| {
            hasher.update(piece);
        });
        if matches!(counter.limit, Limit::Concurrency(_)) {
            hasher.update(LEASES_FORMAT);
        }
        *hasher.finalize().as_bytes()
    }

    pub(crate) fn key(&self, template: &RedisKeyTemplate, per: &[&[u8]]) -> RedisKey {
        let mut hasher = blake3::Hasher::new_keyed(&template.key);
        for value in per {
            hasher.update(&(value.len() as u64).to_le_bytes());
            hasher.update(value);
        }
        let [hash, _] = split_hash(hasher.finalize().as_bytes());
        let tag = per.first().map_or(template.global_tag, |first| self.tag(first));
        RedisKey { tag, hash }
    }

    fn tag(&self, source: &[u8]) -> u16 {
        let [tag_hash, _] = split_hash(blake3::keyed_hash(&self.tag_secret, source).as_bytes());
        let tag = u128::from_le_bytes(tag_hash) % u128::from(self.tags);
        u16::try_from(tag).unwrap_or_default()
    }

    /// A key of this tag that no counter has, for probes.
    pub(crate) fn probe_key(&self, tag: u16) -> RedisKey {
        let [hash, _] = split_hash(blake3::keyed_hash(&self.tag_secret, b"probe").as_bytes());
        RedisKey { tag, hash }
    }

    /// The slot of each tag in a cluster, by the function that maps a tag to its slot.
    pub(crate) fn tag_slots(&self, slot: impl Fn(&[u8]) -> u16) -> Box<[u16]> {
        (0..self.tags).map(|tag| slot(decimal(tag, &mut [0; 5]))).collect()
    }

    /// The key as the server stores it.
    pub(crate) fn text(&self, key: RedisKey) -> KeyText {
        let mut text = KeyText {
            bytes: [0; KeyText::LENGTH_MAX],
            length: 0,
        };
        text.push(self.prefix.as_bytes());
        text.push(b":{");
        let mut digits = [0; 5];
        text.push(decimal(key.tag, &mut digits));
        text.push(b"}:");
        text.push(&base64url(key.hash));
        text
    }
}

impl KeyText {
    /// Prefix, tag, hash and the characters between them.
    const LENGTH_MAX: usize = RedisKeyspace::PREFIX_MAX + 2 + 5 + 2 + 22;

    fn push(&mut self, bytes: &[u8]) {
        let target = self.bytes.get_mut(self.length..self.length + bytes.len());
        // With a longer prefix the text would be another key: the options shorten it.
        target.expect("the parts of a key fit").copy_from_slice(bytes);
        self.length += bytes.len();
    }
}

impl AsRef<[u8]> for KeyText {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl fmt::Display for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().escape_ascii().fmt(f)
    }
}

impl RedisKey {
    /// The number between the braces.
    pub(crate) const fn tag(&self) -> u16 {
        self.tag
    }

    /// A number that spreads keys evenly over shards.
    pub(crate) const fn shard_hash(&self) -> usize {
        u128::from_le_bytes(self.hash) as usize
    }
}

impl Key for RedisKey {
    const LENGTH: usize = 18;

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.tag.to_le_bytes());
        bytes.extend_from_slice(&self.hash);
    }

    fn bits(&self) -> u128 {
        u128::from_le_bytes(self.hash)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (tag, hash) = bytes.split_first_chunk()?;
        Some(Self {
            tag: u16::from_le_bytes(*tag),
            hash: hash.try_into().ok()?,
        })
    }
}

impl fmt::Debug for RedisKeyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("prefix", &self.prefix)
            .field("tags", &self.tags)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RedisKeyTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subjects(..)")
    }
}

fn split_hash(hash: &[u8; 32]) -> [[u8; 16]; 2] {
    let (halves, _) = hash.as_chunks();
    [
        halves.first().copied().unwrap_or_default(),
        halves.last().copied().unwrap_or_default(),
    ]
}

fn decimal(mut number: u16, digits: &mut [u8; 5]) -> &[u8] {
    let mut used = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
        used += 1;
        if number == 0 {
            break;
        }
    }
    digits
        .last_chunk::<5>()
        .map_or(&[], |digits| digits.split_at(5 - used).1)
}

/// 128 bits as 22 letters, digits, `-` and `_`.
fn base64url(hash: [u8; 16]) -> [u8; 22] {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut rest = u128::from_le_bytes(hash);
    std::array::from_fn(|_| {
        let digit = ALPHABET.get((rest % 64) as usize).copied();
        rest /= 64;
        digit.unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use tollgate_core::{Micros, Rate, TokenBucket};

    fn limit() -> Limit {
        TokenBucket::new(Rate::new(1, Micros::from_secs(1)).expect("in range")).into()
    }

    fn counter<'a>(rule: &'a str, limit: &'a Limit) -> Counter<'a> {
        Counter {
            domain: "default",
            rule,
            variant: "",
            limit,
            per: &[],
        }
    }

    #[test]
    fn a_key_is_prefix_tag_and_hash() {
        let keyspace = RedisKeyspace::new("tg", 64, None);
        let limit = limit();
        let template = keyspace.template(&counter("plan", &limit));
        let text = keyspace.text(keyspace.key(&template, &[b"m_1"])).to_string();
        // Instances of any version must find the same counter: a change here changes all keys.
        assert_eq!(text, "tg:{48}:h_giba1ZU8BrqWifiTIiTA");
        let again = RedisKeyspace::new("tg", 64, None);
        let other = RedisKeyspace::new("tg", 64, Some(b"secret"));
        let text_in = |keyspace: &RedisKeyspace| {
            keyspace
                .text(keyspace.key(&keyspace.template(&counter("plan", &limit)), &[b"m_1"]))
                .to_string()
        };
        assert_eq!(text_in(&again), text);
        assert_ne!(text_in(&other), text);
    }

    #[test]
    fn all_counters_of_a_subject_share_a_tag_and_subjects_spread_over_all() {
        let keyspace = RedisKeyspace::new("tg", 64, None);
        let limit = limit();
        let [plan, burst] = ["plan", "burst"].map(|rule| keyspace.template(&counter(rule, &limit)));
        let mut seen = HashSet::new();
        for number in 0..2_000 {
            let merchant = format!("m_{number}");
            let one = keyspace.key(&plan, &[merchant.as_bytes()]);
            let two = keyspace.key(&burst, &[merchant.as_bytes(), b"/v1/charges"]);
            assert_eq!(one.tag, two.tag);
            assert_ne!(one.hash, two.hash);
            seen.insert(one.tag);
        }
        assert_eq!(seen.len(), 64);
    }

    #[test]
    fn the_longest_key_fits() {
        let keyspace = RedisKeyspace::new(&"p".repeat(RedisKeyspace::PREFIX_MAX), u16::MAX, None);
        let key = RedisKey {
            tag: u16::MAX,
            hash: [255; 16],
        };
        let text = keyspace.text(key).to_string();
        assert!(text.ends_with(":{65535}:_____________________D"), "{text}");
        let tag_0 = keyspace.text(RedisKey { tag: 0, ..key }).to_string();
        assert!(tag_0.contains(":{0}:"), "{tag_0}");
    }

    #[test]
    fn bytes_stand_for_a_key() {
        let key = RedisKey {
            tag: 700,
            hash: [7; 16],
        };
        let mut bytes = Vec::new();
        key.write(&mut bytes);
        assert_eq!((bytes.len(), RedisKey::read(&bytes)), (RedisKey::LENGTH, Some(key)));
        assert_eq!(RedisKey::read(&bytes[1..]), None);
    }
}
