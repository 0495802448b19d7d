{#- Written by `lakehouse scaffold`, its own while unchanged: 94a8cb9c86f40019 -#}
{{ cdc_vault.link(src_pk='hk_account_user', src_fk=['hk_account', 'hk_user'], source_model='stg_bank__accounts') }}
