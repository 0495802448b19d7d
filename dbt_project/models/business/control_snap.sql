{{ cdc_vault.control_snap(first_day='2025-01-01') }}
