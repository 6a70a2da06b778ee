//! Envoy's rate limit service, `envoy.service.ratelimit.v3`.
