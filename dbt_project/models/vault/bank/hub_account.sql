{#- Written by `lakehouse scaffold`, its own while unchanged: f4f14c9800b4862c -#}
{{ hub(src_pk='hk_account', src_nk='account_id', source_model=['stg_bank__accounts']) }}
