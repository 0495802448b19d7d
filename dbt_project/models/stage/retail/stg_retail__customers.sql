{#- Written by `lakehouse scaffold`, its own while unchanged: be5d8541f66e57a6 -#}
{{ cdc_vault.stage(
  source_model='parsed_retail__customers',
  hashed_columns={
    'hk_customer': ['customer_id'],
    'hd_customer_pii': {'is_hashdiff': true, 'columns': ['first_name', 'last_name', 'email']},
    'hd_customer_loyalty': {'is_hashdiff': true, 'columns': ['loyalty_tier', 'created_at']},
    'hd_status': {'is_hashdiff': true, 'columns': []},
  },
) }}
