//! Who asks what there is, is told.
use tollgate_test_kit::grpc::GrpcServer;

/// `ServerReflectionRequest { list_services: "" }`: field 7.
const LIST: [u8; 2] = [0x3a, 0x00];
/// `ServerReflectionRequest { file_containing_symbol: … }`: field 4.
const SYMBOL: u8 = 0x22;

#[test]
fn services_and_messages_are_described() {
    let server = GrpcServer::start("- { id: x, limit: 10/min }\n");
    let mut client = server.connect();
    for version in ["v1", "v1alpha"] {
        let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
        let mut reflect = |request: &[u8]| {
            let answer = client.call(&path, request);
            assert_eq!(answer.status, Some(0), "{version}: {answer:?}");
            String::from_utf8_lossy(&answer.message).into_owned()
        };
        let services = reflect(&LIST);
        for name in ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"] {
            assert!(services.contains(name), "{name} is not in {services}");
        }
        let symbol = "envoy.service.ratelimit.v3.RateLimitService";
        let mut request = vec![SYMBOL, symbol.len().try_into().unwrap()];
        request.extend_from_slice(symbol.as_bytes());
        assert!(reflect(&request).contains("ShouldRateLimit"));
        let symbol = "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor";
        let mut request = vec![SYMBOL, symbol.len().try_into().unwrap()];
        request.extend_from_slice(symbol.as_bytes());
        assert!(reflect(&request).contains("is_negative_hits"));
    }
}
