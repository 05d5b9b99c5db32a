//! Any bytes as the body of a request: read, or refused with a problem.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::server::http::api::request;

fuzz_target!(|body: &[u8]| {
    for asked in [request::attempt(body), request::subject(body)].into_iter().flatten() {
        let attributes = asked.attributes();
        let attempt = asked.attempt(&attributes);
        assert!(attempt.attributes.len() <= request::ATTRIBUTES_MAX);
        assert!(attempt.attributes.iter().all(|attribute| attribute.name.len() <= request::NAME_BYTES_MAX));
        assert!(attempt.attributes.iter().all(|attribute| attribute.value.len() <= request::VALUE_BYTES_MAX));
    }
    if let Ok(all) = request::batch(body) {
        assert!(all.len() <= request::BATCH_MAX);
    }
    let _ = request::lease(body);
});
