{{ cdc_vault.control_snap('2026-03-01') }}
