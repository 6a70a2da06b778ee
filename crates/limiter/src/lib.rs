//! Rate limiting on DynamoDB: acquire tokens from several limits of a user and a resource at once.
