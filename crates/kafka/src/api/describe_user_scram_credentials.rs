//! `DescribeUserScramCredentials`: lists users with SCRAM credentials (KIP-554).

api! {
    DescribeUserScramCredentials, key 50, versions 0..=0, flexible 0..;

    request DescribeUserScramCredentialsRequest {
        users: Option<Vec<UserName>>;
    }

    struct UserName {
        name: String;
    }

    response DescribeUserScramCredentialsResponse {
        throttle_time_ms: i32;
        error_code: i16;
        error_message: Option<String>;
        results: Vec<DescribeUserScramCredentialsResult>;
    }

    struct DescribeUserScramCredentialsResult {
        user: String;
        error_code: i16;
        error_message: Option<String>;
        credential_infos: Vec<CredentialInfo>;
    }

    struct CredentialInfo {
        mechanism: i8;
        iterations: i32;
    }
}
