"""A row's way from its route to the batch, the recording and the policy for refused rows."""
